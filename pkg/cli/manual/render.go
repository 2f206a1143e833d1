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
		code, indent := string(n.Literal), rest+"    "
		if strings.Contains(code, "<<") { // pasted with an indent, a here-document would not end
			indent = ""
		}
		for line := range strings.Lines(code) {
			r.line(indent + r.paint(cyan, strings.TrimRight(line, "\n")))
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

// table writes columns as wide as their widest cell, or narrower if the terminal is: then cells wrap.
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
	widths := r.widths(rows)
	for _, row := range rows {
		if strings.Join(row, "") == "" {
			continue
		}
		r.row(row, widths)
	}
	r.line("")
}

// widths returns the width of each column. If they do not fit side by side, the widest are narrowed first, but not
// below the longest word if that can be.
func (r *renderer) widths(rows [][]string) (widths []int) {
	var least []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths, least = append(widths, 1), append(least, 1)
			}
			widths[i] = max(widths[i], columns(cell))
			for word := range strings.FieldsSeq(cell) {
				for _, p := range pieces(word) {
					least[i] = max(least[i], columns(p))
				}
			}
		}
	}
	space := r.Width - 2*(len(widths)-1)
	narrow(least, make([]int, len(least)), space)
	narrow(widths, least, space)
	return widths
}

// narrow narrows the widest columns until all fit into a space, none below its least width.
func narrow(widths, least []int, space int) {
	for total(widths) > space {
		widest := -1
		for i, w := range widths {
			if w > max(least[i], 1) && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func total(widths []int) (sum int) {
	for _, w := range widths {
		sum += w
	}
	return sum
}

func (r *renderer) row(row []string, widths []int) {
	cells, height := make([][]string, len(row)), 0
	for i, cell := range row {
		cells[i] = splitCell(cell, widths[i])
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
	bold  = "\x1b[1m"
	cyan  = "\x1b[36m"
	reset = "\x1b[0m"
)

// paint colours each word separately, so that lines can be broken between words.
func (r *renderer) paint(colour, text string) string {
	if !r.Colour || text == "" {
		return text
	}
	words := strings.Split(text, " ")
	for i, w := range words {
		if w != "" {
			words[i] = colour + w + reset
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

// splitCell is split for cells: it also breaks words that are too long for their column, after a
// comma or a slash if that is enough.
func splitCell(text string, width int) []string {
	var words []string
	for word := range strings.FieldsSeq(text) {
		words = append(words, breakWord(word, width)...)
	}
	return split(strings.Join(words, " "), width)
}

func breakWord(word string, width int) (parts []string) {
	colour, end := "", ""
	if strings.HasPrefix(word, "\x1b") && strings.HasSuffix(word, reset) { // a painted word
		at := strings.IndexByte(word, 'm') + 1
		colour, word, end = word[:at], strings.TrimSuffix(word[at:], reset), reset
	}
	if columns(word) <= width || strings.Contains(word, "\x1b") {
		return []string{colour + word + end}
	}
	part := ""
	for _, piece := range pieces(word) {
		if part != "" && columns(part)+columns(piece) > width {
			parts, part = append(parts, colour+part+end), ""
		}
		for columns(piece) > width { // no column can have it
			r := []rune(piece)
			parts, piece = append(parts, colour+string(r[:width])+end), string(r[width:])
		}
		part += piece
	}
	return append(parts, colour+part+end)
}

// pieces returns the parts of a word that end with a comma or a slash, and the rest.
func pieces(word string) (list []string) {
	for {
		at := strings.IndexAny(word, ",/") + 1
		if at == 0 || at == len(word) {
			return append(list, word)
		}
		list, word = append(list, word[:at]), word[at:]
	}
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
