package manual

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// TestPagesAreShortAndLinked checks that a page has at most 300 lines of at most 120 columns, a title and a
// summary, and that links in pages and in README lead to existing pages.
func TestPagesAreShortAndLinked(t *testing.T) {
	const root = "../../.."
	files, err := filepath.Glob(root + "/pkg/systems/*/manual/*/*.md")
	require.NoError(t, err)
	own, err := filepath.Glob("pages/*/*.md")
	require.NoError(t, err)
	files = append(files, own...)
	require.Greater(t, len(files), 40)
	names := map[string]bool{"options": true, "commands": true} // generated
	for _, file := range files {
		names[strings.TrimSuffix(path.Base(file), ".md")] = true
	}
	link := regexp.MustCompile(`\]\(([^):]+)\)`)
	for _, file := range append(files, root+"/README.md") {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		lines := strings.Split(string(data), "\n")
		require.LessOrEqual(t, len(lines), 300, file)
		require.True(t, strings.HasPrefix(lines[0], "# "), file)
		require.True(t, len(lines) > 2 && lines[1] == "" && lines[2] != "", "%s has no summary", file)
		for i, line := range lines {
			if len([]rune(line)) > 120 && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d has %d columns", file, i+1, len([]rune(line)))
			}
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			if strings.HasSuffix(file, "README.md") {
				_, err := os.Stat(filepath.Join(root, m[1]))
				require.NoError(t, err)
			} else if name, isPage := strings.CutSuffix(path.Base(m[1]), ".md"); isPage && !names[name] {
				t.Errorf("%s links to %s, which is no page", file, m[1])
			}
		}
	}
}

func TestPagesOfSourcesAreChecked(t *testing.T) {
	source := func(file, text string) fs.FS { return fstest.MapFS{file: {Data: []byte(text)}} }
	m, err := Load(source("manual/howto/fly.md", "# Fly a kite\n\nUp.\n"))
	require.NoError(t, err)
	page, ok := m.Page("fly")
	require.True(t, ok)
	require.Equal(t, "Fly a kite", page.Title)
	require.Contains(t, m.Index(), "| fly | Fly a kite |")
	require.Equal(t, []string{"fly"}, m.Like("fyl"))
	require.Empty(t, m.Like("something-else"))
	require.Equal(t, "fly", m.Search(90, "KITE", "up")[0].Name)
	require.Empty(t, m.Search(90, "kite", "down"))

	_, err = Load(source("howto/a.md", "no title\n"))
	require.ErrorContains(t, err, "instead of a title")
	_, err = Load(source("poems/a.md", "# A\n"))
	require.ErrorContains(t, err, `unknown kind "poems"`)
	_, err = Load(source("howto/expose.md", "# Again\n"))
	require.ErrorContains(t, err, "two pages named expose")
}

func TestRenderFitsTheTerminal(t *testing.T) {
	const page = "# Title\n\nA *paragraph* with `code` and a [link](../howto/tls.md) that is longer than forty " +
		"columns.\n\n- an item that is also longer than forty columns are wide\n- two\n\n```sh\necho '<&>'\n```\n\n" +
		"| Name | What |\n|---|---|\n| `a\\|b` | a cell with many words in it, so that it has to be wrapped |\n"
	var b strings.Builder
	require.NoError(t, Render(&b, page, Style{Width: 40}))
	require.Equal(t, `Title

A paragraph with `+"`code`"+` and a link
(`+"`coracle help tls`"+`) that is longer than
forty columns.

- an item that is also longer than forty
  columns are wide
- two

    echo '<&>'

Name   What
`+"`a|b`"+`  a cell with many words in it, so
       that it has to be wrapped
`, b.String())
	for _, line := range strings.Split(b.String(), "\n") {
		require.LessOrEqual(t, len(line), 40)
	}
	var coloured strings.Builder
	require.NoError(t, Render(&coloured, page, Style{Width: 40, Colour: true}))
	require.Contains(t, coloured.String(), "\x1b[1mTitle\x1b[0m")
	require.NotContains(t, coloured.String(), "`")
}

// A block with a here-document can be pasted: the line that ends it has no indent.
func TestRenderKeepsHereDocuments(t *testing.T) {
	var b strings.Builder
	require.NoError(t, Render(&b, "One\n\n```sh\ncat <<EOF\na\nEOF\n```\n", Style{Width: 40}))
	require.Contains(t, b.String(), "\ncat <<EOF\na\nEOF\n")
}

// TestWideTablesFitTheTerminal checks that no column of a table leaves the terminal, with and without colours.
func TestWideTablesFitTheTerminal(t *testing.T) {
	const page = "| Message, condition or symptom | It is | Look at |\n|---|---|---|\n" +
		"| maximum (or minimum) memory usage per Container is | a LimitRange of the namespace, or two of them | " +
		"`coracle ctl get validatingwebhookconfigurations,mutatingwebhookconfigurations` |\n| short | a | b |\n"
	for _, colour := range []bool{false, true} {
		for _, width := range []int{60, 80, 120} {
			var b strings.Builder
			require.NoError(t, Render(&b, page, Style{Width: width, Colour: colour}))
			for line := range strings.Lines(b.String()) {
				require.LessOrEqual(t, columns(strings.TrimSpace(line)), width, b.String())
			}
			require.Contains(t, b.String(), "validatingwebhookconfigurations,")
		}
	}
	narrow := strings.Repeat("| "+strings.Repeat("é", 30)+" ", 3) + "|\n"
	var cut strings.Builder
	require.NoError(t, Render(&cut, "| A | B | C |\n|---|---|---|\n"+narrow, Style{Width: 60}))
	for line := range strings.Lines(cut.String()) {
		require.LessOrEqual(t, columns(strings.TrimSpace(line)), 60, "no column is wide enough for its word")
	}
	require.Equal(t, 90, strings.Count(cut.String(), "é"))
	var b strings.Builder
	const head = "| A | B | C |\n|---|---|---|\n"
	require.NoError(t, Render(&b, head+"| a | "+strings.Repeat("b ", 40)+"| c |\n", Style{Width: 49}))
	require.Equal(t, "A  B                                            C\n"+
		"a  b b b b b b b b b b b b b b b b b b b b b b  c\n"+
		"   b b b b b b b b b b b b b b b b b b\n", b.String(), "only the widest column is narrowed")
}

// TestSearchShowsTextWithoutMarkup checks that words match from their beginning, and that an excerpt has no Markdown.
func TestSearchShowsTextWithoutMarkup(t *testing.T) {
	m, err := Load(fstest.MapFS{"howto/fly.md": {Data: []byte("# Fly a kite\n\nSupport. A **line** of `zeppelin` and a " +
		"[link](../howto/tls.md), which is long enough to be cut at both of its zinnias.\n\n" +
		"| A | B |\n|---|---|\n| `x\\|y` | gasbag |\n")}})
	require.NoError(t, err)
	require.Empty(t, slices.DeleteFunc(m.Search(90, "zeppelin", "port"), func(f Found) bool { return f.Name != "fly" }))
	require.Equal(t, "Support. A line of zeppelin and a link (corac...", m.Search(48, "zeppelin")[0].Line)
	require.Equal(t, "... cut at both of its zinnias.", m.Search(48, "zinnias")[0].Line)
	require.Equal(t, "x|y gasbag", m.Search(90, "gas")[0].Line)
	require.Equal(t, -1, Find("support", "port"))
	require.Equal(t, 9, Find("support, PORTS", "port"))
	require.Equal(t, 6, Find("with a--port", "--port"))
	require.Equal(t, -1, Find("support", ""))
}

func TestWrap(t *testing.T) {
	const text = "One two\nthree four.\n\n  indented lines stay as they are\n\nFive."
	require.Equal(t, text, Wrap(text, 0))
	require.Equal(t, "One two three\nfour.\n\n  indented lines stay as they are\n\nFive.", Wrap(text, 13))
	require.Empty(t, Wrap("", 80))
}

// FuzzRender checks that no Markdown makes the renderer fail or emit control characters from its input.
func FuzzRender(f *testing.F) {
	f.Add("# A\n\n| a |\n|---|\n| b | c |\n", 30)
	f.Add("- a\n  - b\n\n> c\n\n1. d\n", 0)
	f.Add("||\n|-|\n||\n", 80)
	f.Fuzz(func(t *testing.T, text string, width int) {
		var b strings.Builder
		require.NoError(t, Render(&b, text, Style{Width: min(width, 1000)}))
	})
}
