package kind

import (
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MarshalJSON returns the same bytes as json.Marshal. For objects without a Go type it uses no reflection and encodes
// once, while json.Marshal copies and checks the output of the object's own encoder.
func MarshalJSON(obj client.Object) ([]byte, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return json.Marshal(obj)
	}
	b := jsonBuffers.Get().(*[]byte)
	defer jsonBuffers.Put(b)
	out, err := appendJSON((*b)[:0], u.Object)
	if err != nil {
		return nil, err
	}
	if cap(out) <= maxJSONBuffer {
		*b = out
	}
	return slices.Clone(out), nil
}

// maxJSONBuffer is the size in bytes of the largest buffer that is reused.
const maxJSONBuffer = 64 << 10

var jsonBuffers = sync.Pool{New: func() any { return new([]byte) }}

func appendJSON(b []byte, v any) (_ []byte, err error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case string:
		return appendText(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case map[string]any:
		if v == nil {
			return append(b, "null"...), nil
		}
		var few [16]string
		names := few[:0]
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendText(b, name); err != nil {
				return nil, err
			}
			if b, err = appendJSON(append(b, ':'), v[name]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case []any:
		if v == nil {
			return append(b, "null"...), nil
		}
		b = append(b, '[')
		for i, in := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendJSON(b, in); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	}
	return appendOther(b, v)
}

func appendText(b []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return appendOther(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"'), nil
}

func appendOther(b []byte, v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	return append(b, raw...), err
}
