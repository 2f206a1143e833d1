// Package kinds lists a catalog's kinds for the reconcilers. It is separate from pkg/control/controllers because
// package kind depends on the API server's libraries, which reconcilers must not link.
package kinds

import (
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Stored lists the stored kinds of a catalog, each in one version: the stored one if it is served.
func Stored(c *kind.Catalog) engine.Kinds { return storedKinds{c} }

type storedKinds struct{ *kind.Catalog }

func (s storedKinds) Stored() ([]engine.Kind, <-chan struct{}) {
	t, changed := s.Watch()
	kinds := make([]engine.Kind, 0, len(t.All()))
	at := make(map[*kind.Storage]int, len(t.All()))
	for _, r := range t.All() {
		k := engine.Kind{
			GroupVersionKind: r.GroupVersionKind,
			Resource:         r.Plural,
			Namespaced:       r.Namespaced,
			Deletable:        true,
			Stored:           r.Stored().Version,
			Storage:          r.Storage,
		}
		if i, ok := at[r.Storage]; !ok {
			at[r.Storage] = len(kinds)
			kinds = append(kinds, k)
		} else if r.StoredAs == nil {
			kinds[i] = k
		}
	}
	return kinds, changed
}
