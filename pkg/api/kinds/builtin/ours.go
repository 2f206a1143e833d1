package builtin

import (
	"slices"

	"github.com/coracle-dev/coracle/pkg/api/kinds/custom"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// ours returns an Extension with Coracle's own kinds that no system defines.
func ours() own.Extension { return own.Extension{Kinds: snapshotKinds()} }

func extend(rows []*kind.Resource, extensions []own.Extension) []*kind.Resource {
	rows = append(rows, custom.Definitions()) // defines further kinds
	for _, e := range extensions {
		for gvk, more := range e.Subresources {
			i := slices.IndexFunc(rows, func(r *kind.Resource) bool { return r.GroupVersionKind == gvk })
			if i < 0 {
				panic("no kind " + gvk.String() + ", to which an extension adds subresources")
			}
			rows[i].Subresources = append(rows[i].Subresources, more...)
		}
		for _, k := range e.Kinds {
			for i := range k.Row.Subresources {
				if s := &k.Row.Subresources[i]; s.Scale != nil && s.Table == nil {
					s.Table = scalePrinter{}
				}
			}
			rows = append(rows, k.Row)
		}
	}
	return rows
}
