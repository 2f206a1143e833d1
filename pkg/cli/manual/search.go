package manual

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Found is a page found by Search, with the text around the first place that has one of the words.
type Found struct {
	Page
	Line string
}

// Search returns the pages that have all words, as Find finds them, with lines of at most width bytes. Pages with a
// word in their name or title come first.
func (m *Manual) Search(width int, words ...string) (found []Found) {
	var first []Found
	for _, p := range m.pages {
		text := plain(p.Text)
		if slices.ContainsFunc(words, func(word string) bool { return Find(p.Name+"\n"+text, word) < 0 }) {
			continue
		}
		f := Found{Page: p, Line: excerpt(text, words, width)}
		if slices.ContainsFunc(words, func(word string) bool { return Find(p.Name+" "+p.Title, word) >= 0 }) {
			first = append(first, f)
		} else {
			found = append(found, f)
		}
	}
	return append(first, found...)
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

// excerpt returns at most width bytes around the first word after the title that begins with one of the words.
func excerpt(text string, words []string, width int) string {
	_, text, _ = strings.Cut(text, "\n")
	for line := range strings.Lines(text) {
		line = strings.Join(strings.Fields(line), " ")
		for _, word := range words {
			at := Find(line, word)
			if at < 0 {
				continue
			}
			begin := strings.LastIndexByte(line[:max(at-width/3, 0)], ' ')
			if begin > 0 && len(line) > width {
				line = "..." + line[begin:]
			}
			return bounded.Text(line, width)
		}
	}
	return ""
}
