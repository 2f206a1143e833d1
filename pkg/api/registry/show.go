package registry

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// As returns an entry in the version that row serves: the entry itself, unless row is a view of the stored row
// (events.k8s.io Event) or another of its versions. Its object is whole.
func As(row *kind.Resource, e *cache.Entry) (*cache.Entry, error) {
	shown, err := e.In(row)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return shown.Whole(), nil
}

func asAll(row *kind.Resource, entries []*cache.Entry) ([]*cache.Entry, error) {
	if row.StoredAs == nil && !row.PerVersion {
		return entries, nil
	}
	out, err := cache.InAll(row, entries)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return out, nil
}

// show returns the result for a cached entry. Its object may not be whole: encoding does not need that.
func (c *call) show(e *cache.Entry) (Result, error) {
	e, err := e.In(c.Resource)
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	return Result{Entry: e}, nil
}
