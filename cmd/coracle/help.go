package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

// helpBySection has a command's help list its options by section. The advanced ones are in "coracle help options".
func helpBySection(cmd *cobra.Command, sections []config.Section) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out, width := cmd.OutOrStdout(), terminalWidth()
		fmt.Fprintf(out, "Usage:\n  %s\n", cmd.UseLine())
		rest, advanced := pflag.NewFlagSet("", pflag.ContinueOnError), 0
		listed := map[string]bool{}
		for _, s := range sections {
			s.Flags.VisitAll(func(f *pflag.Flag) { listed[f.Name] = true })
			if s.Advanced {
				s.Flags.VisitAll(func(*pflag.Flag) { advanced++ })
				continue
			}
			printFlags(out, s.Title, s.Flags, width)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !listed[f.Name] {
				rest.AddFlag(f)
			}
		})
		printFlags(out, "General", rest, width)
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintln(out, "\nCommands:")
			for _, c := range cmd.Commands() {
				if c.IsAvailableCommand() {
					fmt.Fprintf(out, "  %-*s %s\n", cmd.NamePadding(), c.Name(), c.Short)
				}
			}
		}
		_, err := fmt.Fprintf(out, `
Each option is also a variable (CORACLE_LOG_LEVEL) and a key of the file (log-level: debug).
"coracle help options" describes all of them, %d more than here.
`, advanced)
		return err
	})
}

func printFlags(w io.Writer, title string, f *pflag.FlagSet, width int) {
	if f.HasAvailableFlags() {
		fmt.Fprintf(w, "\n%s:\n%s", title, f.FlagUsagesWrapped(width))
	}
}

// terminalWidth returns the columns of standard output, or 0 if it is not a terminal.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0
	}
	return width
}
