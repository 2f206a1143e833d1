package payload

import (
	"encoding/binary"
	"fmt"
	"reflect"
)

// CheckProto measures a protobuf message that is to be decoded into obj, a pointer to a struct of the Kubernetes API, and refuses it
// with a *ShapeError if it is over a limit. Bytes that are no message pass: their decoder says what is wrong.
func CheckProto(data []byte, obj any) error {
	if len(data) < Small {
		return nil
	}
	_, err := MeasureProto(data, obj)
	return err
}

// MeasureProto is CheckProto with the result, for bodies of any length.
func MeasureProto(data []byte, obj any) (Shape, error) {
	w := &walker{plans: plans{}}
	err := w.message(data, w.plans.of(reflect.TypeOf(obj)), 1)
	return w.Shape, err
}

type walker struct {
	Shape
	plans plans
}

// fields is how many different field numbers of one message are told apart when their items are counted. Types have fewer.
const fields = 64

func (w *walker) message(data []byte, p *plan, depth int) error {
	if w.Depth = max(w.Depth, depth); depth > MaxDepth {
		return tooDeep()
	}
	w.Nested += int64(len(data))
	var seen [fields]int64
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 {
			return nil
		}
		data = data[n:]
		switch tag & 7 {
		case 0:
			if _, n = binary.Uvarint(data); n <= 0 {
				return nil
			}
		case 1:
			n = 8
		case 5:
			n = 4
		case 2:
			size, m := binary.Uvarint(data)
			if m <= 0 || size > uint64(len(data)-m) {
				return nil
			}
			data = data[m:]
			n = int(size)
			number := int(min(tag>>3, 1<<20))
			if err := w.field(data[:n], w.plans.number(p, number), &seen[number%fields], depth); err != nil {
				return err
			}
		default:
			return nil
		}
		if tag&7 == 0 || tag&7 == 1 || tag&7 == 5 {
			number := int(min(tag>>3, 1<<20))
			if f := w.plans.number(p, number); f.class == list {
				w.Memory += w.plans.of(f.elem).size
				if err := w.list(seen[number%fields]); err != nil {
					return err
				}
				seen[number%fields]++
			}
		}
		if n > len(data) {
			return nil
		}
		data = data[n:]
	}
	return w.check()
}

// field measures one length-delimited field, the n-th of its number in the message.
func (w *walker) field(data []byte, p *plan, n *int64, depth int) error {
	switch p.class {
	case list:
		in := w.plans.of(p.elem)
		w.Memory += in.size
		if in.class == scalar && in.extra == 0 { // packed
			w.Memory += in.size * int64(len(data))
			w.Squares += int64(len(data)) * int64(len(data))
		}
		if err := w.list(*n); err != nil {
			return err
		}
		*n++
		return w.one(data, in, depth)
	case table:
		in := w.plans.of(p.elem)
		w.Memory += 2 * (p.key + in.size)
		if err := w.entry(*n); err != nil {
			return err
		}
		*n++
		return w.pair(data, in, depth+1)
	}
	return w.one(data, p, depth)
}

func (w *walker) one(data []byte, p *plan, depth int) error {
	w.Memory += p.extra
	switch p.class {
	case text, opaque, anything:
		w.Memory += int64(len(data))
	case number:
		if len(data) > MaxQuantity+8 {
			return &ShapeError{fmt.Sprintf("a resource quantity may have at most %d characters", MaxQuantity)}
		}
	case message:
		return w.message(data, p, depth+1)
	case list: // a type of its own whose message holds nothing but the items
		return w.message(data, &plan{class: message, typ: p.typ, proto: map[int]reflect.Type{1: reflect.SliceOf(p.elem)}}, depth+1)
	}
	return w.check()
}

// pair measures an entry of a map: a message of a key and a value.
func (w *walker) pair(data []byte, value *plan, depth int) error {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 || tag&7 != 2 {
			return nil
		}
		size, m := binary.Uvarint(data[n:])
		if m <= 0 || size > uint64(len(data)-n-m) {
			return nil
		}
		data = data[n+m:]
		in := data[:size]
		data = data[size:]
		if tag>>3 != 2 {
			if len(in) > MaxKey {
				return &ShapeError{fmt.Sprintf("a key may have at most %d bytes", MaxKey)}
			}
			w.Memory += int64(len(in))
		} else if err := w.one(in, value, depth); err != nil {
			return err
		}
	}
	return nil
}
