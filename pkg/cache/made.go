package cache

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// NewEntry is an entry that the cache does not hold: an object of an older revision, or in another version than
// it is stored in (row is that version's). obj has its resourceVersion and TypeMeta, and is immutable from now on.
func NewEntry(row *kind.Resource, key string, obj client.Object, rev int64) *Entry {
	return &Entry{Object: obj, Key: key, Revision: rev, row: row}
}
