package config

import (
	"fmt"
	"strings"
)

// maxDepth bounds the nesting of brackets, because the programs' own parser is recursive.
const maxDepth = 200

type scanner struct {
	text string
	at   int
	open []byte // the brackets that are still open
	from []int  // their positions
}

// reference is an imported file. text means that it is imported as a string.
type reference struct {
	file string
	text bool
}

// scan checks that strings, comments and brackets are closed, and returns the imported files. Errors begin with the
// line.
func scan(text string) (imports []reference, err error) {
	if !isText(text) {
		return nil, errText
	}
	s := &scanner{text: text}
	pending, tokens := "", 0 // pending is the kind of import that the last token was, or ""
	for s.blank(); s.at < len(text); s.blank() {
		tokens++
		switch c := text[s.at]; {
		case c == '"' || c == '\'' || c == '@' || strings.HasPrefix(text[s.at:], "|||"):
			value, err := s.quoted()
			if err != nil {
				return nil, err
			}
			if pending != "" {
				imports = append(imports, reference{value, pending != "import"})
			}
			pending = ""
		case strings.IndexByte("{[(", c) >= 0:
			if len(s.open) == maxDepth {
				return nil, s.fail(s.at, "brackets are nested more than %d deep", maxDepth)
			}
			s.open, s.from, pending = append(s.open, c), append(s.from, s.at), ""
			s.at++
		case strings.IndexByte("}])", c) >= 0:
			if err := s.closes(c); err != nil {
				return nil, err
			}
			pending = ""
			s.at++
		case letter(c):
			from := s.at
			for s.at < len(text) && (letter(text[s.at]) || text[s.at] >= '0' && text[s.at] <= '9') {
				s.at++
			}
			switch pending = text[from:s.at]; pending {
			case "import", "importstr", "importbin":
			default:
				pending = ""
			}
		default:
			pending = ""
			s.at++
		}
	}
	switch n := len(s.open); {
	case s.at > len(text):
		return nil, s.fail(len(text), "a comment is not closed")
	case n > 0:
		return nil, s.fail(s.from[n-1], "%c is not closed", s.open[n-1])
	case tokens == 0:
		return nil, s.fail(0, "the file is empty")
	}
	return imports, nil
}

func letter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func (s *scanner) fail(at int, format string, args ...any) error {
	return fmt.Errorf("%d: %s", strings.Count(s.text[:at], "\n")+1, fmt.Sprintf(format, args...))
}

// blank skips space and comments. It moves beyond the end of the text if a comment is not closed.
func (s *scanner) blank() {
	for s.at < len(s.text) {
		rest := s.text[s.at:]
		switch {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			s.at++
		case rest[0] == '#' || strings.HasPrefix(rest, "//"):
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest) - 1
			}
			s.at += end + 1
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest[2:], "*/")
			if end < 0 {
				s.at = len(s.text) + 1
				return
			}
			s.at += end + 4
		default:
			return
		}
	}
}

// quoted skips a string and returns its content: "a", 'a', @"a" or a block between lines of |||.
func (s *scanner) quoted() (string, error) {
	from := s.at
	if strings.HasPrefix(s.text[from:], "|||") {
		end := strings.Index(s.text[from+3:], "|||")
		if end < 0 {
			return "", s.fail(from, "||| is not closed")
		}
		s.at = from + 3 + end + 3
		return "", nil
	}
	verbatim := s.text[s.at] == '@'
	if verbatim {
		s.at++
		if s.at == len(s.text) || s.text[s.at] != '"' && s.text[s.at] != '\'' {
			return "", s.fail(from, "@ is not before a string")
		}
	}
	quote := s.text[s.at]
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '\\' && !verbatim:
			s.at++
		case c == quote && verbatim && s.at+1 < len(s.text) && s.text[s.at+1] == quote:
			s.at++
		case c == quote:
			s.at++
			return strings.TrimLeft(s.text[from:s.at], "@")[1 : len(strings.TrimLeft(s.text[from:s.at], "@"))-1], nil
		}
	}
	return "", s.fail(from, "a string is not closed")
}

func (s *scanner) closes(c byte) error {
	n := len(s.open)
	if n == 0 {
		return s.fail(s.at, "%c closes nothing", c)
	}
	if want := "}])"[strings.IndexByte("{[(", s.open[n-1])]; c != want {
		return s.fail(s.at, "%c does not close the %c of line %d", c, s.open[n-1],
			strings.Count(s.text[:s.from[n-1]], "\n")+1)
	}
	s.open, s.from = s.open[:n-1], s.from[:n-1]
	return nil
}
