package registry

import (
	"context"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// collectionWorkers is the number of concurrent deletions in one DeleteCollection, high enough for many of them to
// share one sync of the store's log.
const collectionWorkers = 64

// DeleteCollection deletes the objects that l selects and returns them as they were before. It stops at the first error
// other than NotFound; objects deleted until then stay deleted.
func (r *Registry) DeleteCollection(ctx context.Context, t Target, d metav1.DeleteOptions,
	l metav1.ListOptions) (*List, error) {
	if errs := validation.ValidateDeleteOptions(&d); len(errs) > 0 {
		return nil, apierrors.NewInvalid(metaKind("DeleteOptions"), "", errs)
	}
	if ignore := d.IgnoreStoreReadErrorWithClusterBreakingPotential; ignore != nil && *ignore {
		return nil, apierrors.NewInvalid(metaKind("DeleteOptions"), "", field.ErrorList{field.Invalid(
			field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true,
			"is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	c, err := r.begin(ctx, t, "deletecollection", d.DryRun)
	if err != nil {
		return nil, err
	}
	warnOfOrphans(c, &d)
	list, err := c.list(&l)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, last atomic.Int64
	var workers sync.WaitGroup
	for range min(collectionWorkers, len(list.Entries)) {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				if i >= len(list.Entries) {
					return
				}
				o := list.Entries[i].Object
				one, err := r.begin(ctx, Target{Resource: t.Resource, Namespace: o.GetNamespace(), Name: o.GetName()},
					"deletecollection", d.DryRun)
				var rev int64
				if err == nil {
					err = one.mayDelete()
				}
				if err == nil {
					_, rev, err = one.remove(d)
				}
				if err != nil && !apierrors.IsNotFound(err) {
					cancel(err)
					return
				}
				for old := last.Load(); rev > old && !last.CompareAndSwap(old, rev); old = last.Load() {
				}
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, status(err, c.gr(), "")
	}
	if err := c.waitFor(c.ctx, last.Load()); err != nil {
		return nil, err
	}
	list.Entries, err = asAll(c.Resource, list.Entries)
	return list, err
}
