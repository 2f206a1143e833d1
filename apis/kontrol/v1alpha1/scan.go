package v1alpha1

import "strings"

// scanner reads JSON and decodes only the requested strings. It handles the common form of a valid document; on
// anything else it sets odd, and the caller uses a real parser.
type scanner struct {
	text []byte
	at   int
	odd  bool
}

// next skips white space and returns the next byte without consuming it, or 0 at the end.
func (s *scanner) next() byte {
	for ; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
		default:
			return s.text[s.at]
		}
	}
	return 0
}

// plain reads a string that has no escapes.
func (s *scanner) plain() string {
	if s.next() != '"' {
		s.odd = true
		return ""
	}
	begin := s.at + 1
	for i := begin; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			s.at = i + 1
			return string(s.text[begin:i])
		case c == '\\' || c < ' ' || c >= 0x80:
			s.odd = true
			return ""
		}
	}
	s.odd = true
	return ""
}

func (s *scanner) skip() {
	s.next()
	for depth := 0; s.at < len(s.text); {
		switch c := s.text[s.at]; c {
		case '"':
			s.skipString()
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			if depth == 0 {
				return // the end of the enclosing value
			}
			depth--
			s.at++
		case ',':
			if depth == 0 {
				return
			}
			s.at++
		default:
			s.at++
		}
	}
}

func (s *scanner) skipString() {
	for s.at++; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return
		}
	}
	s.odd = true
}

// other skips the value of a key. A key that differs from a known key only in case sets odd, because encoding/json
// treats it as that key.
func (s *scanner) other(key string, known ...string) {
	for _, k := range known {
		s.odd = s.odd || strings.EqualFold(k, key)
	}
	s.skip()
}

// object reads an object. It calls field for each key; field must read or skip the value.
func (s *scanner) object(field func(key string)) {
	if s.next() != '{' {
		s.odd = true
		return
	}
	s.at++
	if s.next() == '}' {
		s.at++
		return
	}
	for !s.odd {
		key := s.plain()
		if s.next() != ':' {
			s.odd = true
			return
		}
		s.at++
		field(key)
		switch s.next() {
		case ',':
			s.at++
		case '}':
			s.at++
			return
		default:
			s.odd = true
		}
	}
}

// scan returns the identity of a template's object, or false if it needs a real parser.
func scan(template []byte) (t Target, ok bool) {
	s := &scanner{text: template}
	seen := 0
	text := func(into *string) {
		if *into != "" {
			s.odd = true // duplicate key
		}
		*into = s.plain()
	}
	s.object(func(key string) {
		switch key {
		case "apiVersion":
			text(&t.APIVersion)
		case "kind":
			text(&t.Kind)
		case "metadata":
			seen++
			s.object(func(key string) {
				switch key {
				case "name":
					text(&t.Name)
				case "namespace":
					text(&t.Namespace)
				default:
					s.other(key, "name", "namespace")
				}
			})
		default:
			s.other(key, "apiVersion", "kind", "metadata")
		}
	})
	return t, !s.odd && seen == 1
}
