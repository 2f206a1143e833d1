package payload

import "fmt"

// Sizes, in bytes, of values decoded into maps and interfaces.
const (
	mapBytes   = 48  // an empty map
	groupBytes = 280 // its first group of slots
	groupSlots = 8
	entryBytes = 76 // an entry of a larger map, with its share of unused space
	boxBytes   = 16 // a number, or the header of a list or string, in an interface
)

// scanner measures JSON without decoding it. At invalid JSON it stops without an error.
type scanner struct {
	Shape
	data  []byte
	at    int
	plans plans
}

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

func (s *scanner) peek() byte {
	s.space()
	if s.at < len(s.data) {
		return s.data[s.at]
	}
	return 0
}

// value scans a value. ok is false for invalid JSON.
func (s *scanner) value(p *plan, depth int) (ok bool, err error) {
	s.Memory += p.extra
	switch c := s.peek(); c {
	case '{', '[':
		if s.Depth = max(s.Depth, depth); depth > MaxDepth {
			return false, tooDeep()
		}
		from := s.at
		s.at++
		if c == '{' {
			ok, err = s.object(p, depth)
		} else {
			ok, err = s.array(p, depth)
		}
		s.Nested += int64(s.at - from)
		return ok, err
	case '"':
		str, ok := s.str()
		return ok, s.scalar(p, len(str)+boxBytes)
	case 0:
		return false, nil
	default:
		from := s.at
		for s.at < len(s.data) {
			switch s.data[s.at] {
			case ',', ']', '}', ' ', '\t', '\n', '\r', ':', '"', '[', '{':
				return s.at > from, s.scalar(p, s.at-from)
			}
			s.at++
		}
		return s.at > from, s.scalar(p, s.at-from)
	}
}

func (s *scanner) scalar(p *plan, n int) error {
	switch p.class {
	case number:
		if n > MaxQuantity+boxBytes {
			return &ShapeError{fmt.Sprintf("a resource quantity may have at most %d characters", MaxQuantity)}
		}
	case text, opaque:
		s.Memory += int64(n)
	case anything:
		s.Memory += int64(n) + boxBytes
	}
	return s.check()
}

// str scans a string and returns its raw text without the quotes.
func (s *scanner) str() ([]byte, bool) {
	s.at++
	from := s.at
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case '"':
			s.at++
			return s.data[from : s.at-1], true
		case '\\':
			s.at++
		}
		s.at++
	}
	s.at = len(s.data)
	return nil, false
}

func (s *scanner) object(p *plan, depth int) (bool, error) {
	if s.peek() == '}' {
		s.at++
		if p.class == mapping || p.class == anything {
			s.Memory += mapBytes
		}
		return true, s.check()
	}
	for n := int64(0); ; n++ {
		if s.peek() != '"' {
			return false, nil
		}
		key, ok := s.str()
		if !ok || s.peek() != ':' {
			return false, nil
		}
		s.at++
		if len(key) > MaxKey {
			return false, &ShapeError{fmt.Sprintf("a key may have at most %d bytes", MaxKey)}
		}
		in, err := s.keyed(p, key, n)
		if err != nil {
			return false, err
		}
		if ok, err := s.value(in, depth+1); !ok || err != nil {
			return false, err
		}
		switch s.peek() {
		case ',':
			s.at++
		case '}':
			s.at++
			return true, nil
		default:
			return false, nil
		}
	}
}

// keyed counts an object's n-th entry and returns the plan of its value.
func (s *scanner) keyed(p *plan, key []byte, n int64) (*plan, error) {
	switch p.class {
	case message:
		if f := s.plans.field(p, key); f != nil {
			return f, nil
		}
		return ignored, nil
	case mapping:
		in := s.plans.of(p.elem)
		if n == 0 {
			s.Memory += mapBytes
		}
		s.Memory += int64(len(key)) + 2*(p.key+in.size)
		return in, s.entry(n)
	case anything:
		switch {
		case n == 0:
			s.Memory += mapBytes + groupBytes
		case n >= groupSlots:
			s.Memory += entryBytes
		}
		s.Memory += int64(len(key))
		return anyPlan, s.entry(n)
	case list:
		// A union: JSONSchemaPropsOrArray is a list or a single item.
		return s.plans.of(p.elem), nil
	case opaque:
		s.Memory += int64(len(key)) + 3
		return p, nil
	}
	return ignored, nil
}

func (s *scanner) array(p *plan, depth int) (bool, error) {
	in, weight := ignored, int64(1)
	switch p.class {
	case list:
		in, weight = s.plans.of(p.elem), typed
	case anything:
		in = anyPlan
		s.Memory += boxBytes + 8
	case opaque:
		in = p
	case message:
		in = p // JSONSchemaPropsOrArray
	}
	if s.peek() == ']' {
		s.at++
		return true, s.check()
	}
	for n := int64(0); ; n++ {
		s.Memory += in.size
		if err := s.list(n, weight); err != nil {
			return false, err
		}
		if ok, err := s.value(in, depth+1); !ok || err != nil {
			return false, err
		}
		switch s.peek() {
		case ',':
			s.at++
		case ']':
			s.at++
			return true, nil
		default:
			return false, nil
		}
	}
}
