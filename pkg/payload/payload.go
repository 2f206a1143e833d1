// Package payload checks the shape of encoded objects before they are decoded: a request is at most a few megabytes, but its size
// in memory, and the cost to validate or merge it, depend on its shape. Three megabytes of "[{},{}, ...]" decode to a gigabyte of
// containers, a YAML document with aliases can expand without limit, and the cost of patching a list is quadratic in its
// length.
//
// It may import the standard library and the Kubernetes libraries alone. Its invariant: whatever passes a check of this package takes at
// most a small multiple of MaxMemory to decode and about a second of one core to process; the checks themselves take time in
// proportion to the length of their input, negligible memory, and bounded stack.
package payload

import (
	"fmt"
	"reflect"
)

// The limits. All are far above what real objects need: the largest custom resource definitions in use nest about 60 deep and
// decode to about 10 MiB.
const (
	// MaxDepth is how deep objects and lists may nest.
	MaxDepth = 128
	// MaxMemory is the estimated size, in bytes, of a decoded object.
	MaxMemory = 32 << 20
	// MaxSquares bounds the sum of the squares of the lengths of all lists: validation compares the items of a list with each other.
	MaxSquares = 20_000 * 20_000
	// MaxMapSquares is the same for maps, whose keys are kept sorted by insertion where the managers of fields are compared.
	MaxMapSquares = 50_000 * 50_000
	// MaxKey is the length, in bytes, of an object's key.
	MaxKey = 64 << 10
	// MaxQuantity is the length, in bytes, of a resource quantity: parsing takes time with its square.
	MaxQuantity = 256
	// MaxNested bounds the sum of the lengths, in bytes, of all objects and lists, each counted with what is inside it: the work of
	// decoders that read an object level by level.
	MaxNested = 64 << 20
	// MaxYAMLNodes is the number of nodes that a YAML document may have at most, as estimated from its punctuation.
	MaxYAMLNodes = 200_000
	// MaxYAML is the size, in bytes, of a YAML document when each alias is replaced with what it stands for.
	MaxYAML = 3 << 20
)

// Small is the length, in bytes, under which no body needs to be checked before it is decoded: even the worst of them is cheap.
const Small = 16 << 10

// ShapeError says that a body is over one of the limits.
type ShapeError struct{ what string }

func (e *ShapeError) Error() string { return e.what }

func tooDeep() error {
	return &ShapeError{fmt.Sprintf("objects and lists may nest at most %d levels deep", MaxDepth)}
}

// Shape is what was measured of a body.
type Shape struct {
	Depth   int
	Memory  int64 // estimated bytes once decoded
	Squares int64 // sum of the squares of the lengths of lists
	Maps    int64 // sum of the squares of the lengths of maps
	Nested  int64 // sum of the lengths of all objects and lists
	Longest int64 // length of the longest list
	Items   int64 // items of all lists
}

func (s *Shape) check() error {
	switch {
	case s.Depth > MaxDepth:
		return tooDeep()
	case s.Memory > MaxMemory:
		return &ShapeError{fmt.Sprintf("the object would take more than %d bytes of memory", MaxMemory)}
	case s.Squares > MaxSquares:
		return &ShapeError{"the object's lists have too many items"}
	case s.Maps > MaxMapSquares:
		return &ShapeError{"the object's maps have too many keys"}
	}
	return nil
}

// list and entry count one more item of a list, or key of a map, that has n already.
func (s *Shape) list(n int64) error {
	s.Items++
	s.Squares += 2*n + 1
	s.Longest = max(s.Longest, n+1)
	return s.check()
}

func (s *Shape) entry(n int64) error {
	s.Maps += 2*n + 1
	return s.check()
}

// Check measures a JSON body that is to be decoded into obj, a pointer to a struct or a map, and refuses it with a *ShapeError if it is
// over a limit. Text that is not JSON passes: its decoder reports the error.
func Check(data []byte, obj any) error {
	if len(data) < Small {
		return nil
	}
	_, err := Measure(data, obj)
	return err
}

// Measure is Check with the result, for bodies of any length.
func Measure(data []byte, obj any) (Shape, error) {
	s := &scanner{data: data, plans: plans{}}
	var t reflect.Type
	if obj != nil {
		if t = reflect.TypeOf(obj); t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	if _, err := s.value(s.plans.of(t), 1); err != nil {
		return s.Shape, err
	}
	return s.Shape, nil
}
