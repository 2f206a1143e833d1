package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/manual"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// helpBySection makes a command's help list its options by section. Advanced options are only in "coracle help
// options". Its subcommands have the usual help.
func helpBySection(owner *cobra.Command, sections []config.Section) {
	owner.SetUsageFunc(func(cmd *cobra.Command) error {
		if cmd != owner {
			return cmd.Root().UsageFunc()(cmd)
		}
		out, width := cmd.OutOrStdout(), usageWidth()
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
Each option is also a variable (CORACLE_LOG_LEVEL), and a key of the file
(log-level: debug).
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

// terminalWidth returns the number of columns of standard output, or 0 if it is not a terminal.
func terminalWidth() int { return command.Width(os.Stdout) }

// helpCommand is `coracle help`: it shows the help of a command, or a page of the manual.
func helpCommand(sources []fs.FS) *cobra.Command {
	var words bool
	cmd := &cobra.Command{
		Use:   "help [COMMAND | TOPIC | -k WORD ...]",
		Short: "Help for a command, or a page of the manual",
		Long: `Shows the help of a command, or a page of the manual that this binary carries.

  coracle help topics            the table of contents
  coracle help start             a command
  coracle help add-node          a page of the manual
  coracle help -k ingress tls    pages and commands that have these words`,
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			m, err := loadManual(cmd.Root(), sources)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			for _, p := range m.Pages() {
				names = append(names, p.Name+"\t"+p.Title)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := loadManual(cmd.Root(), sources)
			if err != nil {
				return err
			}
			if words {
				return search(cmd, m, args)
			}
			return showHelp(cmd, m, args)
		},
	}
	cmd.Flags().BoolVarP(&words, "keyword", "k", false, "find pages and commands that have all these words")
	return cmd
}

func showHelp(cmd *cobra.Command, m *manual.Manual, args []string) error {
	if len(args) == 0 {
		return cmd.Root().Help()
	}
	topic := strings.Join(args, "-")
	if topic == "topics" {
		return show(cmd, m.Index())
	}
	if page, ok := m.Page(topic); ok {
		return show(cmd, page.Text)
	}
	if c, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 && c != cmd.Root() {
		c.InitDefaultHelpFlag()
		return c.Help()
	}
	like := m.Like(topic)
	if _, ok := m.Page(args[0]); ok {
		like = append(like, args[0])
	}
	if len(like) == 0 {
		like = m.About(args...)
	}
	for _, name := range similar(cmd.Root(), args[0]) {
		if len(args) == 1 && !slices.Contains(like, name) {
			like = append(like, name)
		}
	}
	topic = strings.Join(args, " ")
	if len(like) > 0 {
		return fmt.Errorf("no command or topic %q; did you mean %s? `coracle help -k %s` searches all pages",
			topic, strings.Join(like, ", "), topic)
	}
	return fmt.Errorf("no command or topic %q; `coracle help -k %s` searches all pages, `coracle help topics` lists them",
		topic, topic)
}

// show prints a page, through a pager if it has more lines than the terminal.
func show(cmd *cobra.Command, markdown string) error {
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return manual.Render(cmd.OutOrStdout(), markdown, manual.Style{Width: helpWidth()})
	}
	var text strings.Builder
	style := manual.Style{Width: min(width, pageWidth), Colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if err := manual.Render(&text, markdown, style); err != nil {
		return err
	}
	if strings.Count(text.String(), "\n") >= height {
		name := cmp.Or(os.Getenv("PAGER"), "less -FRX")
		fields := strings.Fields(name)
		if program, err := exec.LookPath(fields[0]); err == nil {
			pager := exec.CommandContext(cmd.Context(), program, fields[1:]...)
			pager.Stdin, pager.Stdout, pager.Stderr = strings.NewReader(text.String()), os.Stdout, os.Stderr
			return pager.Run()
		}
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), text.String())
	return err
}

// Columns of a page: at most pageWidth on a terminal, plainWidth otherwise.
const (
	pageWidth  = 100
	plainWidth = 100
)

// usageWidth returns the number of columns of the terminal, also if standard output is a pipe to a pager, or 0 if there
// is none.
func usageWidth() int { return cmp.Or(terminalWidth(), command.Width(os.Stderr)) }

// helpWidth returns the number of columns for pages.
func helpWidth() int {
	if width := usageWidth(); width > 0 {
		return min(width, pageWidth)
	}
	return plainWidth
}

// excerptIndent is the number of columns before an excerpt of a page.
const excerptIndent = 23

// search lists the pages and commands that contain all words.
func search(cmd *cobra.Command, m *manual.Manual, words []string) error {
	if len(words) == 0 {
		return errors.New("name the words to find: coracle help -k ingress tls")
	}
	width := helpWidth()
	found, out := m.Search(max(width-excerptIndent, 20), words...), cmd.OutOrStdout()
	commands := matching(cmd.Root(), words)
	if len(found)+len(commands) == 0 {
		return fmt.Errorf("no page and no command has %q: use fewer or other words, or see `coracle help topics`",
			strings.Join(words, " "))
	}
	if len(commands) > 0 {
		fmt.Fprintln(out, "Commands:")
	}
	longest := 0
	for _, c := range commands {
		longest = max(longest, len(c.CommandPath()))
	}
	for _, c := range commands {
		fmt.Fprint(out, command.Hang(fmt.Sprintf("  %-*s  ", longest, c.CommandPath()), c.Short, width))
	}
	if len(commands) > 0 && len(found) > 0 {
		fmt.Fprintln(out)
	}
	if len(found) > 0 {
		fmt.Fprintln(out, "Pages, which `coracle help PAGE` shows:")
	}
	for _, f := range found {
		fmt.Fprintf(out, "  %-17s  %s\n", f.Name, f.Title)
		if f.Line != "" {
			fmt.Fprintf(out, "%*s%s\n", excerptIndent, "", f.Line)
		}
	}
	return nil
}

// matching returns the commands below c whose name, description or options contain all words.
func matching(c *cobra.Command, words []string) (found []*cobra.Command) {
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.Name() == ctlName {
			continue
		}
		text := sub.CommandPath() + " " + sub.Short + " " + sub.Long + " " + sub.LocalFlags().FlagUsages()
		if !slices.ContainsFunc(words, func(w string) bool { return manual.Find(text, w) < 0 }) {
			found = append(found, sub)
		}
		found = append(found, matching(sub, words)...)
	}
	return found
}

func loadManual(root *cobra.Command, sources []fs.FS) (*manual.Manual, error) {
	m, err := manual.Load(sources...)
	if err != nil {
		return nil, err
	}
	return m, errors.Join(m.Add(manual.Reference, "options", optionsPage()),
		m.Add(manual.Reference, "commands", commandsPage(root)))
}

// tableText escapes text for a cell of a Markdown table.
var tableText = strings.NewReplacer("|", "\\|", "<", "\\<")

func optionsPage() string {
	var b strings.Builder
	b.WriteString("# Options of server and agent\n\nEach option is a flag of `coracle start`, `server` or `agent`, a " +
		"variable and a key of `" + defaultConfigFile + "` (or of `--config FILE`): `--log-level debug`, " +
		"`CORACLE_LOG_LEVEL=debug` and `log-level: debug` are the same. Flags override variables, variables override the " +
		"file. A list has commas, or is a YAML list in the file. An unknown key is an error.\n")
	for _, s := range config.NewOptions().Sections {
		fmt.Fprintf(&b, "\n## %s\n\n| Option | Default | What it is |\n|---|---|---|\n", s.Title)
		s.Flags.VisitAll(func(f *pflag.Flag) {
			value := strings.Trim(f.DefValue, "[]")
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, value, tableText.Replace(f.Usage))
		})
	}
	return b.String()
}

func commandsPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# All commands\n\n`coracle help COMMAND` describes one. `coracle ctl` is kubectl, whole.\n")
	b.WriteString("\n| Command | What it does |\n|---|---|\n")
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, "| `%s` | %s |\n", sub.CommandPath(), strings.ReplaceAll(sub.Short, "|", "\\|"))
				if sub.Name() != ctlName {
					add(sub)
				}
			}
		}
	}
	add(root)
	return b.String()
}
