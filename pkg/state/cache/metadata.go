package cache

import (
	"bytes"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
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
	if len(raw) == 0 || raw[0] != '{' {
		return 0
	}
	var n bounded.Nesting
	for i, c := range raw {
		if n.Next(c) && n.Depth == 0 {
			return i + 1
		}
	}
	return 0
}
