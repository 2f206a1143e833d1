package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/cli/manual"
	"github.com/coracle-dev/coracle/pkg/systems"
)

func wholeManual(t *testing.T) *manual.Manual {
	t.Helper()
	m, err := loadManual(root(), systems.All().Pages())
	require.NoError(t, err)
	return m
}

var (
	shown = regexp.MustCompile("(?m)(?:^|\\$\\(|`|; |eval \")coracle ([^`\n|;&>]*)")
	word  = regexp.MustCompile(`^[a-z][a-z-]*$`)
)

// TestHelpNamesPagesByTheirWords checks that a word that is in a page's title, or often in its text, leads to the page.
func TestHelpNamesPagesByTheirWords(t *testing.T) {
	_, err := helped(t, "bazel")
	require.ErrorContains(t, err, "did you mean build-farm?")
	_, err = helped(t, "lost", "server")
	require.ErrorContains(t, err, "did you mean backup?")
	_, err = helped(t, "quota")
	require.ErrorContains(t, err, "did you mean limits?")
	require.ErrorContains(t, unknownCommand(root(), "limits"), "see `coracle help limits`")
	require.ErrorContains(t, unknownCommand(root(), "kubectl"), "did you mean ctl?")
	require.ErrorContains(t, unknownCommand(root(), "strat"), "did you mean start?")
	require.ErrorContains(t, unknownCommand(root(), "restore"), "did you mean snapshot?")
}

// TestPagesShowCommandsThatExist checks that each command in the manual is a command of the program, with its
// flags.
func TestPagesShowCommandsThatExist(t *testing.T) {
	checked := 0
	for _, page := range wholeManual(t).Pages() {
		text := strings.ReplaceAll(page.Text, "\\\n", " ")
		for _, m := range shown.FindAllStringSubmatch(text, -1) {
			args := strings.Fields(m[1])
			if len(args) == 0 || args[0] == "ctl" || !word.MatchString(args[0]) {
				continue
			}
			if args[0] == "help" && word.MatchString(args[len(args)-1]) {
				_, err := helped(t, args[1:]...)
				require.NoError(t, err, "%s shows `coracle %s`", page.Name, m[1])
				checked++
				continue
			}
			top := root()
			top.InitDefaultHelpCmd()
			top.InitDefaultCompletionCmd()
			c, rest, err := top.Find(args)
			if err != nil {
				t.Errorf("%s shows `coracle %s`: %v", page.Name, m[1], err)
				continue
			}
			checked++
			for _, arg := range rest {
				if arg == "--" {
					break
				}
				name, isFlag := strings.CutPrefix(arg, "--")
				name, _, _ = strings.Cut(strings.Trim(name, `",.()`), "=")
				if isFlag && c.Flags().Lookup(name) == nil && name != "help" {
					t.Errorf("%s shows `coracle %s`, which has no --%s", page.Name, m[1], name)
				}
			}
		}
	}
	require.Greater(t, checked, 100)
}

func helped(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := root()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"help"}, args...))
	err := cmd.Execute()
	return out.String(), err
}

// TestHelpFitsTheTerminal checks that no line of a list of commands has more than 80 columns.
func TestHelpFitsTheTerminal(t *testing.T) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if !sub.IsAvailableCommand() || sub.Name() == "convert" || sub.Name() == "apply-legacy" {
				continue
			}
			if n := len("   ") + sub.NamePadding() + len(sub.Short); n > 80 {
				t.Errorf("%s takes %d columns: %s", sub.CommandPath(), n, sub.Short)
			}
			visit(sub)
		}
	}
	all := root()
	all.InitDefaultHelpCmd()
	visit(all)
}

func TestHelpFindsPagesCommandsAndMistakes(t *testing.T) {
	out, err := helped(t, "topics")
	require.NoError(t, err)
	for _, p := range wholeManual(t).Pages() {
		require.Contains(t, out, p.Title)
	}
	out, err = helped(t, "options")
	require.NoError(t, err)
	require.Contains(t, out, "`--audit-log-maxage`")
	out, err = helped(t, "snapshot", "save")
	require.NoError(t, err)
	require.Contains(t, out, "coracle snapshot save FILE")
	out, err = helped(t, "-k", "bazel", "tls")
	require.NoError(t, err)
	require.Contains(t, out, "build-farm")
	out, err = helped(t, "agent", "kontrol")
	require.NoError(t, err)
	require.Contains(t, out, "coracle kontrol clusters add boat --pull --token-file boat.token")
	require.NotContains(t, out, "--join", "an option of the node's agent")
	_, err = helped(t, "exposse")
	require.ErrorContains(t, err, "did you mean expose?")
	_, err = helped(t, "snapshot", "sav")
	require.ErrorContains(t, err, "snapshot sav")
	_, err = helped(t, "-k", "nosuchword")
	require.ErrorContains(t, err, "coracle help topics")
	_, err = helped(t, "-k")
	require.ErrorContains(t, err, "name the words")
}

// TestEveryCommandIsInTheManual checks that the generated page lists each command that a user can run.
func TestEveryCommandIsInTheManual(t *testing.T) {
	page, ok := wholeManual(t).Page("commands")
	require.True(t, ok)
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() != ctlName && sub.IsAvailableCommand() {
				require.Contains(t, page.Text, "`"+sub.CommandPath()+"`")
				require.NotEmpty(t, sub.Short, sub.CommandPath())
				visit(sub)
			}
		}
	}
	visit(root())
	require.False(t, slices.ContainsFunc(root().Commands(), func(c *cobra.Command) bool { return c.Short == "" }))
}

// TestFlagsNameTheirValues checks that no description of a flag has text in backquotes, which pflag would show as the
// name of the flag's value.
func TestFlagsNameTheirValues(t *testing.T) {
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.NotContains(t, f.Usage, "`", "%s --%s", c.CommandPath(), f.Name)
		})
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(root())
}

// TestSearchPutsTheRightPageFirst has words that operators searched for.
func TestSearchPutsTheRightPageFirst(t *testing.T) {
	for words, page := range map[string]string{
		"website": "expose", "disk full": "monitor", "dead letter": "workers", "alarm": "monitor",
		"batch job failed": "batch", "ingress tls": "tls",
	} {
		out, err := helped(t, append([]string{"-k"}, strings.Fields(words)...)...)
		require.NoError(t, err, words)
		_, pages, _ := strings.Cut(out, "shows:\n")
		require.Regexp(t, "^  "+page+" ", pages, words)
	}
}
