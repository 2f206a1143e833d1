package program

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// maxSearched bounds the bytes of files that are searched for each fact; larger files get no line numbers.
const maxSearched = 256 << 10

// located adds the line numbers to facts. It returns nil if there are more facts than an answer may have.
func located(f protocol.Facts, files map[string]string, main string) *protocol.Facts {
	if max(len(f.Servers), len(f.Clients), len(f.Files), len(f.Queues), len(f.Routes)) > protocol.MaxFacts {
		return nil
	}
	total := 0
	for _, text := range files {
		total += len(text)
	}
	if total > maxSearched {
		files = nil
	}
	for i := range f.Servers {
		s := &f.Servers[i]
		s.Line = place(files, main, s.Address+s.Path, last(s.Field))
	}
	for i := range f.Clients {
		c := &f.Clients[i]
		c.Line = place(files, main, c.Address, last(c.Field))
	}
	for i := range f.Files {
		f.Files[i].Line = place(files, main, f.Files[i].Path, last(f.Files[i].Field))
	}
	for i := range f.Queues {
		f.Queues[i].Line = place(files, main, f.Queues[i].Prefix, last(f.Queues[i].Field))
	}
	for i := range f.Routes {
		f.Routes[i].Line = place(files, main, f.Routes[i].Address, "schedulers")
	}
	if text, err := json.Marshal(f); err != nil || len(text) > protocol.MaxFactsBytes {
		return nil
	}
	return &f
}

func last(path string) string {
	field := path[strings.LastIndexByte(path, '.')+1:]
	field, _, _ = strings.Cut(field, "[")
	return field
}

// place returns the file and line of the first word that occurs exactly once, or the main file if none does.
func place(files map[string]string, main string, words ...string) string {
	for _, word := range words {
		if at := only(files, word); at != "" {
			return at
		}
	}
	return main
}

// only returns the file and line of a word that occurs exactly once, or "".
func only(files map[string]string, word string) (at string) {
	if word == "" {
		return ""
	}
	for name, text := range files {
		for from := 0; ; {
			i := strings.Index(text[from:], word)
			if i < 0 {
				break
			}
			i += from
			from = i + len(word)
			if !whole(text, i, from) {
				continue
			}
			if at != "" {
				return ""
			}
			at = fmt.Sprintf("%s:%d", name, strings.Count(text[:i], "\n")+1)
		}
	}
	return at
}

// whole reports whether text[from:to] is not part of a longer word.
func whole(text string, from, to int) bool {
	return !(from > 0 && letter(text[from-1]) && letter(text[from])) &&
		!(to < len(text) && letter(text[to]) && letter(text[to-1]))
}

func letter(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
