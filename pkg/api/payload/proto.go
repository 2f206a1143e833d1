package payload

import (
	"fmt"
	"reflect"
)

// CheckProto measures a protobuf message that will be decoded into obj, a pointer to a Kubernetes API struct. It
// returns a *ShapeError if the message exceeds a limit. An invalid message passes: its decoder reports the error.
func CheckProto(data []byte, obj any) error {
	if len(data) < Small {
		return nil
	}
	_, err := MeasureProto(data, obj)
	return err
}

// MeasureProto is CheckProto for messages of any size. It also returns the measurement.
func MeasureProto(data []byte, obj any) (Shape, error) {
	w := &walker{plans: plans{}}
	err := w.message(data, w.plans.of(reflect.TypeOf(obj)), 1)
	return w.Shape, err
}

type walker struct {
	Shape
	plans plans
}

// fields is the number of fields of a message whose items are counted separately. No type has more.
const fields = 64

// uvarint decodes a varint like the generated decoders, which drop overflowing bits of the tenth byte.
func uvarint(data []byte) (v uint64, n int) {
	for shift := uint(0); shift < 64 && n < len(data); shift += 7 {
		b := data[n]
		n++
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, n
		}
	}
	return 0, 0
}

// tag returns a field's number, truncated to 32 bits like in the generated decoders, and its wire type.
func tag(data []byte) (number int32, wire, n int) {
	v, n := uvarint(data)
	return int32(v >> 3), int(v & 7), n
}

// delimited splits a length-prefixed part off the front of data.
func delimited(data []byte) (in, rest []byte, ok bool) {
	size, n := uvarint(data)
	if n == 0 || size > uint64(len(data)-n) {
		return nil, nil, false
	}
	return data[n : n+int(size)], data[n+int(size):], true
}

// skip removes a field from the front of data, including the content of a group.
func skip(data []byte, wire int) (rest []byte, ok bool) {
	groups := 0
	for {
		n := 0
		switch wire {
		case 0:
			if _, n = uvarint(data); n == 0 {
				return nil, false
			}
		case 1:
			n = 8
		case 2:
			if _, data, ok = delimited(data); !ok {
				return nil, false
			}
		case 3:
			groups++
		case 4:
			groups--
		case 5:
			n = 4
		default:
			return nil, false
		}
		if n > len(data) || groups < 0 {
			return nil, false
		}
		if data = data[n:]; groups == 0 {
			return data, true
		}
		if _, wire, n = tag(data); n == 0 {
			return nil, false
		}
		data = data[n:]
	}
}

func (w *walker) message(data []byte, p *plan, depth int) error {
	if w.Depth = max(w.Depth, depth); depth > MaxDepth {
		return tooDeep()
	}
	w.Nested += int64(len(data))
	var seen [fields]int64
	for len(data) > 0 {
		number, wire, n := tag(data)
		if n == 0 {
			return nil
		}
		data = data[n:]
		count := &seen[uint32(number)%fields]
		f := w.plans.number(p, int(number))
		var in []byte
		var ok bool
		if wire == 2 {
			if in, data, ok = delimited(data); !ok {
				return nil
			}
			if err := w.field(in, f, count, depth); err != nil {
				return err
			}
			continue
		}
		if f.class == list {
			w.Memory += w.plans.of(f.elem).size
			if err := w.list(*count, typed); err != nil {
				return err
			}
			*count++
		}
		if data, ok = skip(data, wire); !ok {
			return nil
		}
	}
	return w.check()
}

// field measures a length-delimited field, the n-th with its number in the message.
func (w *walker) field(data []byte, p *plan, n *int64, depth int) error {
	switch p.class {
	case list:
		in := w.plans.of(p.elem)
		w.Memory += in.size
		if in.class == scalar && in.extra == 0 { // packed
			w.Memory += in.size * int64(len(data))
			w.Squares += typed * int64(len(data)) * int64(len(data))
		}
		if err := w.list(*n, typed); err != nil {
			return err
		}
		*n++
		return w.one(data, in, depth)
	case mapping:
		in := w.plans.of(p.elem)
		w.Memory += 2 * (p.key + in.size)
		if err := w.entry(*n); err != nil {
			return err
		}
		*n++
		return w.pair(data, in, depth+1)
	case message:
		// Decoders merge repeated occurrences of a singular message. No encoder writes them.
		if *n++; *n > 1 {
			return &ShapeError{"a part of the object occurs twice"}
		}
	}
	return w.one(data, p, depth)
}

func (w *walker) one(data []byte, p *plan, depth int) error {
	w.Memory += p.extra
	if p.raw {
		w.Memory += int64(len(data))
		return w.json(data, p.class, depth)
	}
	switch p.class {
	case text, anything:
		w.Memory += int64(len(data))
	case number:
		if len(data) > MaxQuantity+8 {
			return &ShapeError{fmt.Sprintf("a resource quantity may have at most %d characters", MaxQuantity)}
		}
	case message:
		return w.message(data, p, depth+1)
	case list: // a message type whose only field is the list
		return w.message(data, &plan{class: message, typ: p.typ, proto: map[int]reflect.Type{1: reflect.SliceOf(p.elem)}},
			depth+1)
	}
	return w.check()
}

// json measures JSON in a message with a single field of bytes, such as the default of a property.
func (w *walker) json(data []byte, as class, depth int) error {
	for len(data) > 0 {
		number, wire, n := tag(data)
		if n == 0 {
			return nil
		}
		data = data[n:]
		if number == 1 && wire == 2 {
			in, rest, ok := delimited(data)
			if !ok {
				return nil
			}
			s := scanner{Shape: w.Shape, data: in, plans: w.plans}
			_, err := s.value(&plan{class: as}, depth+1)
			if w.Shape = s.Shape; err != nil {
				return err
			}
			data = rest
			continue
		}
		var ok bool
		if data, ok = skip(data, wire); !ok {
			return nil
		}
	}
	return w.check()
}

// pair measures a map entry: a message of key and value, whose wire types the generated decoders ignore.
func (w *walker) pair(data []byte, value *plan, depth int) error {
	for len(data) > 0 {
		number, wire, n := tag(data)
		if n == 0 {
			return nil
		}
		data = data[n:]
		var in []byte
		var ok bool
		switch {
		case number == 2 && value.class == scalar && value.extra == 0:
			if data, ok = skip(data, 0); !ok {
				return nil
			}
		case number == 1 || number == 2:
			if in, data, ok = delimited(data); !ok {
				return nil
			}
			if number == 2 {
				if err := w.one(in, value, depth); err != nil {
					return err
				}
				break
			}
			if len(in) > MaxKey {
				return &ShapeError{fmt.Sprintf("a key may have at most %d bytes", MaxKey)}
			}
			w.Memory += int64(len(in))
		default:
			if data, ok = skip(data, wire); !ok {
				return nil
			}
		}
	}
	return w.check()
}
