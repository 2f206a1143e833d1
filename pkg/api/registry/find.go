package registry

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// find reads an object of another kind in its internal version. Before it returns NotFound, it brings the cache up
// to date.
func find[T runtime.Object](c *call, row *kind.Resource, namespace, name string) (none T, _ error) {
	if row == nil {
		return none, apierrors.NewInternalError(fmt.Errorf("cannot look up %q: its kind is not served", name))
	}
	e := c.cache.Get(row, namespace, name)
	if e == nil {
		if _, err := c.sync(c.ctx); err != nil {
			return none, err
		}
		if e = c.cache.Get(row, namespace, name); e == nil {
			if u, ok := c.cache.UnreadableAt(row.Key(namespace, name)); ok {
				return none, StoreReadError(row.GR(), []cache.Unreadable{u})
			}
			return none, apierrors.NewNotFound(row.GR(), name)
		}
	}
	in, err := row.Internal(kind.Shallow(e.Object))
	if err != nil {
		return none, apierrors.NewInternalError(err)
	}
	out, ok := in.(T)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("%s %q is a %T", row.GR(), name, in))
	}
	return out, nil
}
