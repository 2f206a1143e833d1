package manual

import (
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/russross/blackfriday/v2"
)

// Style configures the rendering of a page.
type Style struct {
	// Width is the number of columns for text. Code is not wrapped.
	Width int
	// Colour enables bold and colours.
	Colour bool
	// bare omits the quotes around code.
	bare bool
}

const extensions = blackfriday.Tables | blackfriday.FencedCode | blackfriday.NoIntraEmphasis |
	blackfriday.Autolink

// Render writes Markdown as text for a terminal.
func Render(w io.Writer, markdown string, s Style) error {
	s.Width = max(s.Width, 40)
	root := blackfriday.New(blackfriday.WithExtensions(extensions)).Parse([]byte(markdown))
	r := &renderer{Style: s}
	for n := root.FirstChild; n != nil; n = n.Next {
		r.block(n, "", "")
	}
	_, err := io.WriteString(w, strings.TrimRight(r.out.String(), "\n")+"\n")
	return err
}

type renderer struct {
	Style
	out strings.Builder
}

// block writes a block. The indentation is first for its first line and rest for the others.
func (r *renderer) block(n *blackfriday.Node, first, rest string) {
	switch n.Type {
	case blackfriday.Heading:
		r.line(r.paint(bold, r.inline(n)))
		r.line("")
	case blackfriday.Paragraph:
		r.wrap(r.inline(n), first, rest)
		r.line("")
	case blackfriday.CodeBlock:
		for line := range strings.Lines(string(n.Literal)) {
			r.line(rest + "    " + r.paint(cyan, strings.TrimRight(line, "\n")))
		}
		r.line("")
	case blackfriday.List:
		r.list(n, rest)
	case blackfriday.BlockQuote:
		for c := n.FirstChild; c != nil; c = c.Next {
			r.block(c, rest+"  ", rest+"  ")
		}
	case blackfriday.Table:
		r.table(n)
	case blackfriday.HTMLBlock, blackfriday.HorizontalRule:
	}
}

func (r *renderer) list(n *blackfriday.Node, indent string) {
	for item := n.FirstChild; item != nil; item = item.Next {
		first, rest := indent+"- ", indent+"  "
		for c := item.FirstChild; c != nil; c = c.Next {
			if c.Type == blackfriday.Paragraph {
				r.wrap(r.inline(c), first, rest)
			} else {
				r.block(c, first, rest)
			}
			first = rest
		}
	}
	r.line("")
}

// table writes columns as wide as their widest cell. It wraps the last column.
func (r *renderer) table(n *blackfriday.Node) {
	var rows [][]string
	n.Walk(func(n *blackfriday.Node, entering bool) blackfriday.WalkStatus {
		switch {
		case n.Type == blackfriday.TableRow && entering:
			rows = append(rows, nil)
		case n.Type == blackfriday.TableCell && entering:
			// Blackfriday keeps the backslash of an escaped bar in code.
			rows[len(rows)-1] = append(rows[len(rows)-1], strings.ReplaceAll(r.inline(n), `\|`, "|"))
			return blackfriday.SkipChildren
		}
		return blackfriday.GoToNext
	})
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = min(max(widths[i], columns(cell)), r.Width/2)
		}
	}
	for _, row := range rows {
		if strings.Join(row, "") == "" {
			continue
		}
		r.row(row, widths)
	}
	r.line("")
}

func (r *renderer) row(row []string, widths []int) {
	used := 0
	for _, w := range widths[:len(widths)-1] {
		used += w + 2
	}
	cells, height := make([][]string, len(row)), 0
	for i, cell := range row {
		w := widths[i]
		if i == len(row)-1 {
			w = max(r.Width-used, 20)
		}
		cells[i] = split(cell, w)
		height = max(height, len(cells[i]))
	}
	for k := range height {
		var b strings.Builder
		for i := range row {
			text := ""
			if k < len(cells[i]) {
				text = cells[i][k]
			}
			b.WriteString(text)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", max(widths[i]-columns(text), 0)+2))
			}
		}
		r.line(strings.TrimRight(b.String(), " "))
	}
}

func (r *renderer) inline(n *blackfriday.Node) string {
	var b strings.Builder
	for c := n.FirstChild; c != nil; c = c.Next {
		switch c.Type {
		case blackfriday.Text:
			b.WriteString(strings.ReplaceAll(string(c.Literal), "\n", " "))
		case blackfriday.Code:
			b.WriteString(r.code(string(c.Literal)))
		case blackfriday.Strong, blackfriday.Emph:
			b.WriteString(r.paint(bold, r.inline(c)))
		case blackfriday.Link:
			text, target := r.inline(c), string(c.Destination)
			switch name, isPage := strings.CutSuffix(path.Base(target), ".md"); {
			case isPage && text == name:
				b.WriteString(r.code("coracle help " + name))
			case isPage:
				b.WriteString(text + " (" + r.code("coracle help "+name) + ")")
			case text != target:
				b.WriteString(text + " (" + target + ")")
			default:
				b.WriteString(text)
			}
		case blackfriday.Softbreak, blackfriday.Hardbreak:
			b.WriteByte(' ')
		default:
			b.WriteString(r.inline(c))
		}
	}
	return b.String()
}

func (r *renderer) code(text string) string {
	switch {
	case r.Colour:
		return r.paint(cyan, text)
	case r.bare:
		return text
	}
	return "`" + text + "`"
}

const (
	bold = "\x1b[1m"
	cyan = "\x1b[36m"
)

// paint colours each word separately, so that lines can be broken between words.
func (r *renderer) paint(colour, text string) string {
	if !r.Colour || text == "" {
		return text
	}
	words := strings.Split(text, " ")
	for i, w := range words {
		if w != "" {
			words[i] = colour + w + "\x1b[0m"
		}
	}
	return strings.Join(words, " ")
}

func (r *renderer) wrap(text, first, rest string) {
	for _, line := range split(text, r.Width-utf8.RuneCountInString(rest)) {
		r.line(first + line)
		first = rest
	}
}

func (r *renderer) line(text string) {
	r.out.WriteString(text)
	r.out.WriteByte('\n')
}

// Wrap breaks the paragraphs of plain text anew into lines of at most width columns. Indented lines stay as they are,
// and so does all text if width is 0.
func Wrap(text string, width int) string {
	if width == 0 {
		return text
	}
	var lines, paragraph []string
	for _, line := range append(strings.Split(text, "\n"), "") {
		if line != "" && line[0] != ' ' {
			paragraph = append(paragraph, line)
			continue
		}
		if len(paragraph) > 0 {
			lines, paragraph = append(lines, split(strings.Join(paragraph, " "), width)...), nil
		}
		lines = append(lines, line)
	}
	return strings.TrimSuffix(strings.Join(lines, "\n"), "\n")
}

// split breaks text between words into lines of at most width columns. A longer word gets a line of its own.
func split(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && columns(line)+1+columns(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// columns returns the width of text without colour sequences.
func columns(text string) (n int) {
	escape := false
	for _, c := range text {
		switch {
		case c == '\x1b':
			escape = true
		case escape:
			escape = c != 'm'
		default:
			n++
		}
	}
	return n
}
