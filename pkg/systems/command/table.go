package command

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"
	"golang.org/x/term"
)

const (
	// gap is the space between columns: with kubectl's three, fewer tables fit a terminal of 80 columns.
	gap          = 2
	narrowest    = 4  // the least width of a column, without the gap
	narrowestEnd = 20 // the least width at which the last column is wrapped
	indent       = 4  // of texts below their rows
	none         = "-"
)

// minor marks the header of a column that a narrow terminal may leave out.
const minor = "?"

// Table prints rows below a header. A column whose header ends with a question mark is minor; the mark is not printed.
// On a terminal that is too narrow, Table leaves out empty columns, and minor ones from the right. Then it wraps the
// last column or, without room for that, prints the columns on the right below their rows. Elsewhere each row is one
// line with all columns, for programs.
func Table(out io.Writer, header string, rows func(line func(cells ...any))) error {
	lines := [][]string{strings.Split(header, "\t")}
	inLine := strings.NewReplacer("\n", " ", "\t", " ")
	rows(func(cells ...any) {
		line := slices.Repeat([]string{none}, len(lines[0]))
		for i, c := range cells {
			if text := inLine.Replace(fmt.Sprint(c)); text != "" {
				line[i] = text
			}
		}
		lines = append(lines, line)
	})
	return printTable(out, lines, Width(out))
}

// Paragraph prints a text as one line, which is wrapped on a terminal.
func Paragraph(out io.Writer, text string) { fmt.Fprint(out, Hang("", text, Width(out))) }

// Hang returns head and text as one line or, if that is longer than width, as lines that are aligned below the text.
// Words are not cut. Without width, or without room for text beside head, nothing is wrapped.
func Hang(head, text string, width int) string {
	indent := utf8.RuneCountInString(head)
	if room := width - indent; room >= narrowestEnd {
		text = strings.ReplaceAll(wordwrap.WrapString(text, uint(room)), "\n", "\n"+strings.Repeat(" ", indent))
	}
	return head + text + "\n"
}

// Width returns the columns of a terminal, or 0 if out is none.
func Width(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

func printAligned(out io.Writer, lines [][]string) error {
	w := tabwriter.NewWriter(out, narrowest+gap, 4, gap, ' ', 0)
	for _, line := range lines {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	return w.Flush()
}

// printTable prints a table in width columns, or as it is if width is too small for any. lines[0] is the header, and
// each line has as many cells.
func printTable(out io.Writer, lines [][]string, width int) error {
	all := make([]string, len(lines[0]))
	for i, head := range lines[0] {
		all[i] = strings.TrimSuffix(head, minor)
	}
	unmarked := slices.Clone(lines)
	unmarked[0] = all
	if width <= indent || sum(columnWidths(unmarked)) <= width {
		return printAligned(out, unmarked)
	}
	dropEmpty(lines)
	dropMinor(lines, width)
	widths := columnWidths(lines)
	last := len(widths) - 1
	rest := width - sum(widths[:last])
	if rest >= min(widths[last], narrowestEnd) || last == 0 {
		return printAligned(out, wrapLast(lines, max(rest, narrowestEnd)))
	}
	return printFolded(out, lines, width)
}

// dropMinor removes minor columns, the right ones first, until the table fits without its last column, or with it if
// that is short. It removes the marks of the others.
func dropMinor(lines [][]string, width int) {
	isMinor := make([]bool, len(lines[0]))
	for i, head := range lines[0] {
		lines[0][i], isMinor[i] = strings.CutSuffix(head, minor)
	}
	for column := len(isMinor) - 1; column > 0; column-- {
		widths := columnWidths(lines)
		if last := len(widths) - 1; widths[last] > narrowestEnd {
			widths = widths[:last]
		}
		if isMinor[column] && sum(widths) > width {
			dropColumn(lines, column)
		}
	}
}

// printFolded prints the left columns that fit, and the others below each row.
func printFolded(out io.Writer, lines [][]string, width int) error {
	below := make([][]string, len(lines))
	header, last := slices.Clone(lines[0]), len(lines[0])-1
	for at := last; at > 0 && (at == last || sum(columnWidths(lines)) > width); at-- {
		for i, line := range lines[1:] {
			switch text := line[at]; {
			case text == none:
			case at == last && len(text) > narrowestEnd: // a message, which says itself what it is
				below[i+1] = []string{text}
			default:
				below[i+1] = slices.Insert(below[i+1], 0, header[at]+" "+text)
			}
		}
		dropColumn(lines, at)
	}
	var table strings.Builder
	if err := printAligned(&table, lines); err != nil {
		return err
	}
	i := 0
	for line := range strings.Lines(table.String()) {
		if len(below[i]) > 0 {
			line += Hang(strings.Repeat(" ", indent), strings.Join(below[i], "; "), width)
		}
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
		i++
	}
	return nil
}

// dropEmpty removes the columns that no line has a value for.
func dropEmpty(lines [][]string) {
	for column := len(lines[0]) - 1; column > 0; column-- {
		if !slices.ContainsFunc(lines[1:], func(line []string) bool { return line[column] != none }) {
			dropColumn(lines, column)
		}
	}
}

func dropColumn(lines [][]string, column int) {
	for i := range lines {
		lines[i] = slices.Delete(lines[i], column, column+1)
	}
}

// wrapLast breaks the texts of the last column into lines of at most width columns.
func wrapLast(lines [][]string, width int) (wrapped [][]string) {
	last := len(lines[0]) - 1
	for _, line := range lines {
		for i, part := range strings.Split(wordwrap.WrapString(line[last], uint(width)), "\n") {
			next := make([]string, len(line))
			if i == 0 {
				copy(next, line)
			}
			next[last] = part
			wrapped = append(wrapped, next)
		}
	}
	return wrapped
}

// columnWidths returns the widths of the columns with their gaps; the last column has none.
func columnWidths(lines [][]string) []int {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			if n := utf8.RuneCountInString(cell); i == len(line)-1 {
				widths[i] = max(widths[i], n)
			} else {
				widths[i] = max(widths[i], max(n, narrowest)+gap)
			}
		}
	}
	return widths
}

func sum(widths []int) (total int) {
	for _, w := range widths {
		total += w
	}
	return total
}
