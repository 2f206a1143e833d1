// Package manual is the manual in the binary. It finds Markdown pages by name, by words and by misspelt names, and
// renders them for a terminal. A page is a file KIND/NAME.md, where KIND is tutorial, howto, reference or explanation.
// It begins with a title, and its first paragraph is its summary. Its invariant: page names are unique across all
// sources.
package manual

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

//go:embed pages
var pages embed.FS

// Kind is the kind of a page.
type Kind string

// The kinds of pages.
const (
	Tutorial    Kind = "tutorial"
	HowTo       Kind = "howto"
	Reference   Kind = "reference"
	Explanation Kind = "explanation"
)

// kinds are in the order of the index, with their headings.
var kinds = []struct {
	kind    Kind
	heading string
}{
	{Tutorial, "Tutorials: learn by doing"}, {HowTo, "How to: one task each"},
	{Reference, "Reference: facts, complete"}, {Explanation, "Explanation: how it works and why"},
}

// Page is a page of the manual.
type Page struct {
	Name string
	Kind Kind
	// Title is the text of the first heading, Text the whole page in Markdown.
	Title, Text string
}

// Manual is a set of pages.
type Manual struct{ pages []Page }

// Load returns a Manual with the pages in the binary and in further sources, such as a system's.
func Load(sources ...fs.FS) (*Manual, error) {
	own, err := fs.Sub(pages, "pages")
	if err != nil {
		return nil, err
	}
	m := &Manual{}
	for _, source := range append([]fs.FS{own}, sources...) {
		err := fs.WalkDir(source, ".", func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || path.Ext(file) != ".md" {
				return err
			}
			text, err := fs.ReadFile(source, file)
			if err != nil {
				return err
			}
			return m.Add(Kind(path.Base(path.Dir(file))), strings.TrimSuffix(path.Base(file), ".md"), string(text))
		})
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Add adds a page. It returns an error if the page has no title, an unknown kind, or the name of another page.
func (m *Manual) Add(kind Kind, name, text string) error {
	first, _, _ := strings.Cut(text, "\n")
	title, ok := strings.CutPrefix(first, "# ")
	switch {
	case !ok:
		return fmt.Errorf("page %s of the manual begins with %q instead of a title", name, first)
	case !slices.ContainsFunc(kinds, func(k struct {
		kind    Kind
		heading string
	}) bool {
		return k.kind == kind
	}):
		return fmt.Errorf("page %s of the manual has the unknown kind %q", name, kind)
	}
	if _, there := m.Page(name); there {
		return fmt.Errorf("the manual has two pages named %s", name)
	}
	m.pages = append(m.pages, Page{Name: name, Kind: kind, Title: title, Text: text})
	slices.SortFunc(m.pages, func(a, b Page) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// Pages returns all pages, sorted by name.
func (m *Manual) Pages() []Page { return m.pages }

// Page returns the page with the given name.
func (m *Manual) Page(name string) (Page, bool) {
	for _, p := range m.pages {
		if p.Name == name {
			return p, true
		}
	}
	return Page{}, false
}

// Like returns the names of pages similar to a misspelt name.
func (m *Manual) Like(name string) []string {
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, p := range m.pages {
		names.AddCommand(&cobra.Command{Use: p.Name, Run: func(*cobra.Command, []string) {}})
	}
	return names.SuggestionsFor(name)
}

// Index returns the table of contents as Markdown.
func (m *Manual) Index() string {
	var b strings.Builder
	b.WriteString("# The manual\n\n`coracle help TOPIC` shows a page, `coracle help -k WORD ...` finds pages.\n")
	for _, k := range kinds {
		fmt.Fprintf(&b, "\n## %s\n\n| | |\n|---|---|\n", k.heading)
		for _, p := range m.pages {
			if p.Kind == k.kind {
				fmt.Fprintf(&b, "| %s | %s |\n", p.Name, p.Title)
			}
		}
	}
	return b.String()
}
