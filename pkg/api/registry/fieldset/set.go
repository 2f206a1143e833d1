package fieldset

import (
	"bytes"
	"encoding/json"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// maxDepth is the maximum nesting of fields in a set.
const maxDepth = 128

// subtract returns a without the fields of the other sets, or nil if nothing remains. If nothing is removed, it
// returns a itself. A nil set is empty. ok is false if a set is not encoded the way this package and upstream do.
func subtract(a []byte, sets ...[]byte) (left []byte, ok bool) {
	if len(a) == 0 || string(a) == "{}" {
		return nil, true
	}
	for _, b := range sets {
		if b == nil || a == nil {
			continue
		}
		var m merge
		if !m.run(a, b, m.subtract) {
			return nil, false
		}
		if out := m.out.text(); len(out) != len(a) {
			a = out
		}
	}
	return a, true
}

func union(a, b []byte) (both []byte, ok bool) {
	if a == nil {
		return b, true
	}
	var m merge
	ok = m.run(a, b, m.union)
	return m.out.text(), ok
}

type merge struct {
	out   writer
	bad   bool
	depth int
}

func (m *merge) run(a, b []byte, how func(a, b *cursor)) bool {
	x, y := &cursor{text: a}, &cursor{text: b}
	if !x.open() || !y.open() {
		return false
	}
	m.out.buf = make([]byte, 0, len(a)+len(b))
	how(x, y)
	return !m.bad && !x.bad && !y.bad && x.at == len(a) && y.at == len(b)
}

// subtract writes the fields of a's object that are not in b's. Both cursors start after the opening brace of the
// object, and end after the closing one.
func (m *merge) subtract(a, b *cursor) {
	kb := b.next()
	for ka := a.next(); ka != nil; ka = a.next() {
		for kb != nil && m.compare(kb, ka) < 0 {
			b.value()
			kb = b.next()
		}
		if kb == nil || m.compare(kb, ka) > 0 {
			m.copy(ka, a)
			continue
		}
		if m.depth++; m.depth > maxDepth || !a.open() || !b.open() {
			m.bad = true
			return
		}
		inA, inB := a.member(), b.member()
		m.out.enter(string(ka), inA && !inB)
		m.subtract(a, b)
		m.out.exit()
		m.depth--
		kb = b.next()
	}
	for ; kb != nil; kb = b.next() {
		b.value()
	}
}

func (m *merge) union(a, b *cursor) {
	ka, kb := a.next(), b.next()
	for ka != nil || kb != nil {
		var which int
		switch {
		case kb == nil:
			which = -1
		case ka == nil:
			which = 1
		default:
			which = m.compare(ka, kb)
		}
		switch {
		case which < 0:
			m.copy(ka, a)
			ka = a.next()
		case which > 0:
			m.copy(kb, b)
			kb = b.next()
		default:
			if m.depth++; m.depth > maxDepth || !a.open() || !b.open() {
				m.bad = true
				return
			}
			inA, inB := a.member(), b.member()
			m.out.enter(string(ka), inA || inB)
			m.union(a, b)
			m.out.exit()
			m.depth--
			ka, kb = a.next(), b.next()
		}
		if m.bad {
			return
		}
	}
}

// copy writes a field with everything below it.
func (m *merge) copy(key []byte, from *cursor) {
	value := from.value()
	if len(value) < 2 {
		m.bad = true
		return
	}
	m.out.leaf(string(key))
	m.out.buf = append(m.out.buf[:len(m.out.buf)-2], value...)
}

// compare implements the order of keys: fields, items by key fields, and items by value, each sorted by content.
func (m *merge) compare(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	if a[1] == 'f' && b[1] == 'f' && bytes.IndexByte(a, '\\') < 0 && bytes.IndexByte(b, '\\') < 0 {
		return bytes.Compare(a[3:len(a)-2], b[3:len(b)-2])
	}
	x, okX := element(a)
	y, okY := element(b)
	c := x.Compare(y)
	if !okX || !okY || c == 0 {
		m.bad = true
		return -1
	}
	return c
}

// element parses a key like upstream.
func element(key []byte) (e fieldpath.PathElement, ok bool) {
	var text string
	if json.Unmarshal(key[:len(key)-1], &text) != nil {
		return e, false
	}
	e, err := fieldpath.DeserializePathElement(text)
	return e, err == nil
}

type cursor struct {
	text []byte
	at   int
	bad  bool
}

func (c *cursor) fail() []byte {
	c.bad, c.at = true, len(c.text)
	return nil
}

func (c *cursor) open() bool {
	if c.at >= len(c.text) || c.text[c.at] != '{' {
		c.fail()
		return false
	}
	c.at++
	return true
}

// member reports whether the field whose object was just opened is itself in the set, and skips its marker.
func (c *cursor) member() bool {
	const mark = `".":{}`
	rest := c.text[c.at:]
	if bytes.HasPrefix(rest, []byte("}")) {
		return true
	}
	if !bytes.HasPrefix(rest, []byte(mark)) {
		return false
	}
	c.at += len(mark)
	if c.at < len(c.text) && c.text[c.at] == ',' {
		c.at++
	}
	return true
}

// next returns the next key of the object, including quotes and colon. At the end of the object it returns nil and
// leaves the object.
func (c *cursor) next() []byte {
	if c.at >= len(c.text) {
		return c.fail()
	}
	if c.text[c.at] == '}' {
		c.at++
		return nil
	}
	if c.text[c.at] == ',' {
		c.at++
	}
	start := c.at
	if !c.quoted() || c.at-start < len(`"f:"`) || c.text[start+2] != ':' || c.at >= len(c.text) || c.text[c.at] != ':' {
		return c.fail()
	}
	c.at++
	return c.text[start:c.at]
}

func (c *cursor) quoted() bool {
	if c.at >= len(c.text) || c.text[c.at] != '"' {
		return false
	}
	for i := c.at + 1; i < len(c.text); i++ {
		switch c.text[i] {
		case '\\':
			i++
		case '"':
			c.at = i + 1
			return true
		}
	}
	return false
}

func (c *cursor) value() []byte {
	start, depth := c.at, 0
	for c.at < len(c.text) {
		switch c.text[c.at] {
		case '"':
			if !c.quoted() {
				return c.fail()
			}
			continue
		case '{':
			depth++
		case '}':
			depth--
		case ',', ':':
		default:
			return c.fail()
		}
		c.at++
		if depth == 0 {
			return c.text[start:c.at]
		}
	}
	return c.fail()
}
