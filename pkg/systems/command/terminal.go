package command

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Terminal holds a command's input and output. Err is for progress and questions.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
}

// Interactive reports whether In is a terminal, so that a user can answer questions.
func (t Terminal) Interactive() bool {
	f, ok := t.In.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// ClearLine clears the current line of a terminal.
const ClearLine = "\r\x1b[K"

// Progress replaces the current line of Err, if Err is a terminal, with a text that is cut to one line.
func (t Terminal) Progress(text string) {
	if !t.Live() {
		return
	}
	width, _, err := term.GetSize(int(t.Err.(*os.File).Fd()))
	if err != nil || width < longestLine {
		width = longestLine
	}
	fmt.Fprint(t.Err, ClearLine, bounded.Text(strings.ReplaceAll(text, "\n", " "), width-1))
}

// Live reports whether Err is a terminal, so that a line of progress can replace the one before.
func (t Terminal) Live() bool {
	f, ok := t.Err.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Standard returns the terminal of this process.
func Standard() Terminal { return Terminal{In: os.Stdin, Out: os.Stdout, Err: os.Stderr} }

// Exit ends the process with a code other than 1. Commands that answer a question return 1 for "no" and more for an
// error.
type Exit struct {
	Code int
	// Err is printed unless it is nil.
	Err error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *Exit) Unwrap() error { return e.Err }

// Exactly is cobra.ExactArgs with a usage message. It also requires the named flags.
func Exactly(n int, usage string, flags ...string) cobra.PositionalArgs {
	return expect(n, n, usage, flags)
}

// AtLeast is cobra.MinimumNArgs with a usage message.
func AtLeast(n int, usage string) cobra.PositionalArgs { return expect(n, math.MaxInt, usage, nil) }

// AtMost is cobra.MaximumNArgs with a usage message.
func AtMost(n int, usage string) cobra.PositionalArgs { return expect(0, n, usage, nil) }

func expect(least, most int, usage string, flags []string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		wrong := ""
		absent := slices.IndexFunc(flags, func(f string) bool { return !cmd.Flags().Changed(f) })
		switch {
		case len(args) < least:
			wrong = "an argument is missing"
		case len(args) > most && cmd.HasAvailableSubCommands():
			return fmt.Errorf("%s has no command %q: see `%s --help`", cmd.CommandPath(), args[most], cmd.CommandPath())
		case len(args) > most:
			wrong = fmt.Sprintf("unexpected argument %q", args[most])
		case absent >= 0:
			wrong = "--" + flags[absent] + " is missing"
		default:
			return nil
		}
		return fmt.Errorf("%s; usage: %s", wrong, strings.TrimSpace(cmd.CommandPath()+" "+usage))
	}
}

// PrintAs prints a value as json or yaml.
func PrintAs(out io.Writer, format string, v any) error {
	var data []byte
	var err error
	switch format {
	case "json":
		data, err = json.MarshalIndent(v, "", "  ")
		data = append(data, '\n')
	case "yaml":
		data, err = yaml.Marshal(v)
	default:
		return fmt.Errorf("--output %q is not json or yaml", format)
	}
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}

// Stamp formats a time in the local time zone, or returns "" if t is zero.
func Stamp(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

const (
	longestLine    = 60  // the least width of a line of progress
	longestMessage = 400 // bounds a message in a table, in bytes; Table wraps it
)

// Shorten turns a text into one line that fits into a table.
func Shorten(text string) string {
	return bounded.Text(strings.ReplaceAll(text, "\n", " "), longestMessage)
}
