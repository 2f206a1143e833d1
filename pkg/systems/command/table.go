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

// Table prints rows below a header. On a terminal that is too narrow it leaves out empty columns and wraps the last
// column. Without room for that, it prints the last column's texts below their rows, and leaves out the columns on the
// right. Elsewhere each row is one line with all columns, for programs.
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
	if width := Width(out); width > indent {
		return printFitted(out, lines, width)
	}
	return printAligned(out, lines)
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

// printFitted prints a table in width columns, as far as it can: lines[0] is the header, and each line has as many
// cells.
func printFitted(out io.Writer, lines [][]string, width int) error {
	if sum(columnWidths(lines)) <= width {
		return printAligned(out, lines)
	}
	dropEmpty(lines)
	widths := columnWidths(lines)
	last := len(widths) - 1
	rest := width - sum(widths[:last])
	switch {
	case widths[last] <= narrowestEnd || last == 0:
		return printAligned(out, dropRight(lines, width, last-1))
	case rest >= narrowestEnd:
		return printAligned(out, wrapLast(lines, rest))
	}
	texts := make([]string, len(lines))
	for i, line := range lines {
		texts[i], lines[i] = line[last], line[:last]
	}
	var table strings.Builder
	if err := printAligned(&table, dropRight(lines, width, last-1)); err != nil {
		return err
	}
	i := 0
	for line := range strings.Lines(table.String()) {
		if i > 0 && texts[i] != none {
			text := wordwrap.WrapString(texts[i], uint(width-indent))
			line += "    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n"
		}
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
		i++
	}
	return nil
}

// dropRight removes columns, from the one at the index to the second, until the table fits.
func dropRight(lines [][]string, width, column int) [][]string {
	for ; column > 0 && sum(columnWidths(lines)) > width; column-- {
		for i := range lines {
			lines[i] = slices.Delete(lines[i], column, column+1)
		}
	}
	return lines
}

// dropEmpty removes the columns that no line has a value for.
func dropEmpty(lines [][]string) {
	for column := len(lines[0]) - 1; column > 0; column-- {
		if !slices.ContainsFunc(lines[1:], func(line []string) bool { return line[column] != none }) {
			for i := range lines {
				lines[i] = slices.Delete(lines[i], column, column+1)
			}
		}
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
