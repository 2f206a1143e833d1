package cache

import (
	"bytes"

	"k8s.io/apimachinery/pkg/runtime"
)

// maxForMetadata is the size in bytes of the largest object that is encoded for its metadata. For larger ones it is
// cheaper to encode only the metadata, and keeping the whole encoding would evict others.
const maxForMetadata = 16 << 10

// Metadata is the JSON of the metadata, cut from the object's encoding, for tables and metadata-only lists. It is nil
// for objects without a Go type, for large objects whose encoding is not kept, and for packed objects, whose encoding
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

// objectLength is the length of the JSON object at the start of raw, which must be valid JSON; 0 if raw starts
// otherwise.
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
