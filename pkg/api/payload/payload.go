// Package payload checks the shape of encoded objects before they are decoded. A request is at most a few megabytes,
// but its memory, and the cost to validate or merge it, depend on its shape: three megabytes of "[{},{}, ...]"
// decode to a gigabyte of containers, YAML aliases can expand without limit, and the cost of patching a list is
// quadratic in its length.
//
// Its invariant: input that passes a check takes at most a small multiple of MaxMemory to decode, and about a second
// of one core to process. The checks take time linear in the input, negligible memory and a bounded stack.
package payload

import (
	"fmt"
	"reflect"
)

// Limits. All are far above the needs of real objects: the largest custom resource definitions in use nest about 60
// levels deep and decode to about 10 MiB.
const (
	// MaxDepth is the maximum nesting of objects and lists.
	MaxDepth = 128
	// MaxMemory is the maximum estimated size of a decoded object, in bytes.
	MaxMemory = 32 << 20
	// MaxSquares limits the sum of the squared lengths of all lists, because validation compares the items of a list
	// with each other. Lists in Go types count typed times: upstream's validation takes up to 10 ns per pair.
	MaxSquares = 20_000 * 20_000
	typed      = 3
	// MaxMapSquares limits the sum of the squared lengths of all maps, because comparing managed fields inserts
	// their keys into a sorted list.
	MaxMapSquares = 50_000 * 50_000
	// MaxKey is the maximum length of an object's key, in bytes.
	MaxKey = 64 << 10
	// MaxQuantity is the maximum length of a resource quantity, in bytes. The cost of parsing it is quadratic.
	MaxQuantity = 256
	// MaxNested limits the sum of the lengths in bytes of all objects and lists, including their content: the cost
	// of decoders that read an object level by level.
	MaxNested = 64 << 20
	// MaxYAMLNodes is the maximum number of nodes in a YAML document, estimated from its punctuation.
	MaxYAMLNodes = 200_000
	// MaxYAML is the maximum size of a YAML document in bytes, with aliases expanded.
	MaxYAML = 3 << 20
)

// Small is the size in bytes below which bodies are not checked, because even the worst one is cheap.
const Small = 16 << 10

// ShapeError means that a body exceeds a limit.
type ShapeError struct{ what string }

func (e *ShapeError) Error() string { return e.what }

func tooDeep() error {
	return &ShapeError{fmt.Sprintf("objects and lists may nest at most %d levels deep", MaxDepth)}
}

// Shape is the result of a measurement.
type Shape struct {
	Depth   int
	Memory  int64 // estimated bytes once decoded
	Squares int64 // sum of the squared lengths of lists, multiplied by typed for those in Go types
	Maps    int64 // sum of the squared lengths of maps
	Nested  int64 // sum of the lengths of all objects and lists, with content
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

// list counts another item of a list that already has n; weight is 1 or typed. entry does the same for keys of a map.
func (s *Shape) list(n, weight int64) error {
	s.Items++
	s.Squares += weight * (2*n + 1)
	s.Longest = max(s.Longest, n+1)
	return s.check()
}

func (s *Shape) entry(n int64) error {
	s.Maps += 2*n + 1
	return s.check()
}

// Check measures a JSON body that will be decoded into obj, a pointer to a struct or map. It returns a *ShapeError
// if the body exceeds a limit. Invalid JSON passes: its decoder reports the error.
func Check(data []byte, obj any) error {
	if len(data) < Small {
		return nil
	}
	_, err := Measure(data, obj)
	return err
}

// Measure is Check for bodies of any size. It also returns the measurement.
func Measure(data []byte, obj any) (Shape, error) {
	s := &scanner{data: data, plans: plans{}}
	var t reflect.Type
	if _, untyped := obj.(interface{ UnstructuredContent() map[string]any }); obj != nil && !untyped {
		if t = reflect.TypeOf(obj); t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	if _, err := s.value(s.plans.of(t), 1); err != nil {
		return s.Shape, err
	}
	return s.Shape, nil
}
