package fieldset

import (
	"strconv"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// writer encodes a set of fields as FieldsV1. Fields must come in upstream's order. A parent is written only once a
// field below it is.
type writer struct {
	buf     []byte
	stack   []frame
	written int // how many frames are in buf
}

// frame is a field with others below it. Its key has the form `"f:name":`.
type frame struct {
	key    string
	member bool // the field itself is in the set
}

func (w *writer) reset() { w.buf, w.stack, w.written = w.buf[:0], w.stack[:0], 0 }

func (w *writer) key(key string) {
	if len(w.buf) == 0 {
		w.buf = append(w.buf, '{')
	} else if w.buf[len(w.buf)-1] != '{' {
		w.buf = append(w.buf, ',')
	}
	w.buf = append(w.buf, key...)
}

func (w *writer) enter(key string, member bool) { w.stack = append(w.stack, frame{key, member}) }

func (w *writer) exit() {
	f := w.stack[len(w.stack)-1]
	w.stack = w.stack[:len(w.stack)-1]
	if w.written > len(w.stack) {
		w.buf = append(w.buf, '}')
		w.written--
	} else if f.member {
		w.leaf(f.key)
	}
}

func (w *writer) leaf(key string) {
	for ; w.written < len(w.stack); w.written++ {
		f := w.stack[w.written]
		w.key(f.key)
		w.buf = append(w.buf, '{')
		if f.member {
			w.buf = append(w.buf, `".":{}`...)
		}
	}
	w.key(key)
	w.buf = append(w.buf, '{', '}')
}

// text returns the encoded set, nil if it is empty.
func (w *writer) text() []byte {
	if len(w.buf) == 0 {
		return nil
	}
	return append(append(make([]byte, 0, len(w.buf)+1), w.buf...), '}')
}

func fieldKey(name string) string {
	if plain(name) {
		return `"f:` + name + `":`
	}
	return oddKey(fieldpath.PathElement{FieldName: &name})
}

func valueKey(v scalar) string {
	if !v.number && plain(v.text) {
		return `"v:\"` + v.text + `\"":`
	}
	if v.number {
		return `"v:` + strconv.FormatInt(v.n, 10) + `":`
	}
	return oddKey(fieldpath.PathElement{Value: new(v.value())})
}

// itemKey returns the key of an item of a list that is a map. Names and values are sorted by name.
func itemKey(names []string, v *identity) string {
	var space [128]byte
	b := append(space[:0], `"k:{`...)
	for i, name := range names {
		if !v[i].present {
			continue
		}
		if len(b) > len(`"k:{`) {
			b = append(b, ',')
		}
		b = append(append(append(b, `\"`...), name...), `\":`...)
		switch {
		case v[i].number:
			b = strconv.AppendInt(b, v[i].n, 10)
		case plain(v[i].text):
			b = append(append(append(b, `\"`...), v[i].text...), `\"`...)
		default:
			return oddItemKey(names, v)
		}
	}
	return string(append(b, `}":`...))
}

func oddItemKey(names []string, v *identity) string {
	var fields value.FieldList
	for i, name := range names {
		if v[i].present {
			fields = append(fields, value.Field{Name: name, Value: v[i].value()})
		}
	}
	return oddKey(fieldpath.PathElement{Key: &fields})
}

// oddKey uses upstream's encoder for keys that need escapes.
func oddKey(e fieldpath.PathElement) string {
	text, err := fieldpath.NewSet(fieldpath.Path{e}).ToJSON()
	if err != nil || len(text) < len(`{"":{}}`) {
		return `"f:":`
	}
	return string(text[1 : len(text)-3])
}

// plain reports whether s needs no escaping in JSON, nor in JSON within JSON.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// scalar is the value of a key field of a list item.
type scalar struct {
	present, number bool
	n               int64
	text            string
}

func (s scalar) value() value.Value {
	if s.number {
		return value.NewValueInterface(s.n)
	}
	return value.NewValueInterface(s.text)
}

const maxKeys = 4

// identity identifies a list item: the values of its key fields or, in a set, the item itself as the first value.
type identity [maxKeys]scalar
