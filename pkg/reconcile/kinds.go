package reconcile

import (
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

// Stored tells of the kinds of a catalog, each in one version: the stored one where that is served.
func Stored(c *kind.Catalog) Kinds { return stored{c} }

type stored struct{ *kind.Catalog }

func (s stored) Stored() ([]engine.Kind, <-chan struct{}) {
	t, changed := s.Watch()
	kinds := make([]engine.Kind, 0, len(t.All()))
	at := make(map[*kind.Storage]int, len(t.All()))
	for _, r := range t.All() {
		k := engine.Kind{GroupVersionKind: r.GroupVersionKind, Resource: r.Plural, Namespaced: r.Namespaced, Deletable: true, Storage: r.Storage}
		if i, ok := at[r.Storage]; !ok {
			at[r.Storage] = len(kinds)
			kinds = append(kinds, k)
		} else if r.StoredAs == nil {
			kinds[i] = k
		}
	}
	return kinds, changed
}
