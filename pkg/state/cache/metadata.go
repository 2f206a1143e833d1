package cache

import (
	"bytes"

	"k8s.io/apimachinery/pkg/runtime"
)

// maxForMetadata is the size, in bytes, of the largest object that is encoded for its metadata. Of a larger one
// encoding the metadata alone costs less, and keeping the whole would take the room of others' encodings.
const maxForMetadata = 16 << 10

// Metadata is the metadata in JSON, a part of it: what tables and lists of metadata have of an object. It is nil for
// objects without a Go type, for large ones whose encoding is not kept already, and for packed ones, whose encoding
// never is. Shared: do not modify.
func (e *Entry) Metadata() []byte {
	if e.row.Pack != nil {
		return nil
	}
	if _, ok := e.Object.(runtime.Unstructured); ok {
		return nil
	}
	full := e.load(encodingJSON)
	if full == nil {
		if e.size() > maxForMetadata {
			return nil
		}
		full = e.JSON()
	}
	rest, ok := e.withoutTypeMeta(full)
	if ok {
		rest, ok = bytes.CutPrefix(rest, []byte(`"metadata":`))
	}
	if !ok {
		return nil
	}
	if n := objectLength(rest); n > 0 {
		return rest[:n:n]
	}
	return nil
}

// objectLength is the length of the JSON object with which valid JSON begins, 0 if it begins otherwise.
func objectLength(raw []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		case depth == 0:
			return 0
		}
	}
	return 0
}
