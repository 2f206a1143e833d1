package manual

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Found is a page found by Search, with the text around the first line that has most of the words.
type Found struct {
	Page
	Line string
}

// Search returns the pages that have all words, as Find finds them, with lines of at most width bytes. Pages with most
// words in their title, or in it and one heading, come first.
func (m *Manual) Search(width int, words ...string) (found []Found) {
	for _, p := range m.pages {
		text := plain(p.Text)
		if count(p.Name+"\n"+text, words) == len(words) {
			found = append(found, Found{Page: p, Line: excerpt(text, words, width)})
		}
	}
	slices.SortStableFunc(found, func(a, b Found) int {
		return cmp.Or(headed(b.Page, words)-headed(a.Page, words), count(b.top(), words)-count(a.top(), words))
	})
	return found
}

func (p Page) top() string { return p.Name + " " + p.Title }

// headed returns how many of the words are in the name and title of a page together with one of its headings.
func headed(p Page, words []string) (most int) {
	most = count(p.top(), words)
	for line := range strings.Lines(p.Text) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			most = max(most, count(p.top()+" "+heading, words))
		}
	}
	return most
}

// count returns how many of the words Find finds.
func count(text string, words []string) (n int) {
	for _, word := range words {
		if Find(text, word) >= 0 {
			n++
		}
	}
	return n
}

// Titled returns the names of the pages with all words in their name or title.
func (m *Manual) Titled(words ...string) (names []string) {
	for _, p := range m.pages {
		if !slices.ContainsFunc(words, func(word string) bool { return Find(p.Name+" "+p.Title, word) < 0 }) {
			names = append(names, p.Name)
		}
	}
	return names
}

// About returns what Titled does or, if that is nothing, the tutorial or how-to page that has the words most often, at
// least twice each.
func (m *Manual) About(words ...string) []string {
	if names := m.Titled(words...); len(names) > 0 {
		return names
	}
	most, best := 1, []string(nil)
	for _, p := range m.pages {
		if p.Kind != Tutorial && p.Kind != HowTo {
			continue
		}
		times, text := math.MaxInt, strings.ToLower(p.Text)
		for _, word := range words {
			times = min(times, strings.Count(text, strings.ToLower(word)))
		}
		if times > most {
			most, best = times, []string{p.Name}
		}
	}
	return best
}

// Find returns the index of the first word in text that begins with prefix, ignoring case, or -1: "port" finds
// "ports", but not "support".
func Find(text, prefix string) int {
	prefix = strings.ToLower(prefix)
	if lower := strings.ToLower(text); len(lower) == len(text) { // else indexes would differ
		text = lower
	}
	first, _ := utf8.DecodeRuneInString(prefix)
	for at := 0; ; {
		next := strings.Index(text[at:], prefix)
		if next < 0 || prefix == "" {
			return -1
		}
		at += next
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		if at == 0 || !inWord(before) || !inWord(first) {
			return at
		}
		at += len(prefix)
	}
}

func inWord(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }

// plain returns the text of a page without markup, one line for each paragraph, item, row and line of code.
func plain(markdown string) string {
	var b strings.Builder
	_ = Render(&b, markdown, Style{Width: math.MaxInt32, bare: true}) // a Builder never fails
	return b.String()
}

// excerpt returns at most width bytes of the first line after the title that has most of the words.
func excerpt(text string, words []string, width int) string {
	_, text, _ = strings.Cut(text, "\n")
	best, most := "", 0
	for line := range strings.Lines(text) {
		if n := count(line, words); n > most {
			best, most = strings.Join(strings.Fields(line), " "), n
		}
	}
	at := len(best)
	for _, word := range words {
		if i := Find(best, word); i >= 0 {
			at = min(at, i)
		}
	}
	begin := strings.LastIndexByte(best[:max(at-width/3, 0)], ' ')
	if begin > 0 && len(best) > width {
		best = "..." + best[begin:]
	}
	return bounded.Text(best, width)
}
