package registry

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// Delete deletes the object or starts its graceful deletion. If the deletion is not complete, the Result is Pending
// and has the object. Otherwise it has a Status, or the object for the kinds for which upstream returns it.
func (r *Registry) Delete(ctx context.Context, t Target, o metav1.DeleteOptions) (Result, error) {
	return r.DeleteWithout(ctx, t, o, "")
}

// DeleteWithout is Delete of an object that does not wait for the finalizer: it is removed in the same write. If the
// object's deletion has begun, the finalizer stays.
func (r *Registry) DeleteWithout(ctx context.Context, t Target, o metav1.DeleteOptions,
	finalizer string) (Result, error) {
	if errs := validation.ValidateDeleteOptions(&o); len(errs) > 0 {
		return Result{}, apierrors.NewInvalid(metaKind("DeleteOptions"), "", errs)
	}
	c, err := r.begin(ctx, t, "delete", o.DryRun)
	if err != nil {
		return Result{}, err
	}
	c.without = finalizer
	if c.Subresource != "" {
		return Result{}, c.noSubresource()
	}
	if err := c.mayDelete(); err != nil {
		return Result{}, err
	}
	warnOfOrphans(c, &o)
	var res Result
	var rev int64
	if ignore := o.IgnoreStoreReadErrorWithClusterBreakingPotential; ignore != nil && *ignore {
		res, rev, err = c.removeUnreadable()
	} else {
		res, rev, err = c.remove(o)
	}
	if err != nil {
		return Result{}, err
	}
	if rev == 0 {
		return res, nil
	}
	if res.Pending {
		pending := res
		res, err = c.answer(c.Name, rev, pending.Object.(client.Object))
		res.Pending = true
		return res, err
	}
	return res, c.waitFor(c.ctx, rev)
}

// warnOfOrphans sends the kind's warning, if any, to a client that does not choose what happens to dependents.
func warnOfOrphans(c *call, o *metav1.DeleteOptions) {
	if c.Resource.DeleteWarning != "" && o.PropagationPolicy == nil &&
		o.OrphanDependents == nil { //nolint:staticcheck // clients send it
		warning.AddWarning(c.ctx, "", c.Resource.DeleteWarning)
	}
}

// remove deletes the object or starts its deletion, and returns the revision it wrote, or 0 if it wrote nothing. It
// does not wait for the cache. The object of a pending result is of the stored version.
func (c *call) remove(o metav1.DeleteOptions) (res Result, rev int64, err error) {
	err = c.retry(func(e *cache.Entry) (err error) {
		res, rev, err = c.removeOnce(e, *o.DeepCopy())
		return err
	})
	return res, rev, err
}

func (c *call) removeOnce(e *cache.Entry, o metav1.DeleteOptions) (Result, int64, error) {
	if e == nil {
		return Result{}, 0, c.notFound()
	}
	obj, err := c.internal(e)
	if err != nil {
		return Result{}, 0, err
	}
	if c.row == c.namespaces {
		if done, res, rev, err := c.terminate(e, obj, &o); done || err != nil {
			return res, rev, err
		}
	}
	m, err := metaOf(obj)
	if err != nil {
		return Result{}, 0, err
	}
	graceful, pending, err := rest.BeforeDelete(c.strategy(), c.ctx, obj, &o)
	if err != nil {
		return Result{}, 0, err
	}
	if err := c.admitDelete(e, &o); err != nil {
		return Result{}, 0, err
	}
	if pending {
		res, err := c.show(e)
		res.Pending = true
		return res, 0, err
	}
	if e.Object.GetDeletionTimestamp() == nil {
		m.SetFinalizers(slices.DeleteFunc(m.GetFinalizers(), func(f string) bool { return f == c.without }))
	}
	finalizers := m.GetFinalizers()
	if c.row.BeginDelete == nil {
		finalizers = c.finalizers(finalizers, &o)
	} else if m.GetDeletionTimestamp() == nil {
		c.row.BeginDelete(obj)
		finalizers = m.GetFinalizers()
	}
	if len(finalizers) == 0 && (!graceful || *o.GracePeriodSeconds == 0) {
		return c.erase(e, obj)
	}
	m.SetFinalizers(finalizers)
	if !graceful {
		markDeleting(m, time.Now())
	}
	return c.mark(e, obj)
}

// mark writes an object whose deletion has started but must wait for its grace period or finalizers.
func (c *call) mark(e *cache.Entry, obj runtime.Object) (Result, int64, error) {
	out, value, err := c.encode(obj)
	if err != nil {
		return Result{}, 0, err
	}
	before, err := c.row.Encode(e.Object)
	if err != nil {
		return Result{}, 0, apierrors.NewInternalError(err)
	}
	if string(before) == string(value) && c.row.Serves(e.Object) {
		res, err := c.show(e)
		res.Pending = true
		return res, 0, err
	}
	if c.dry {
		out.SetResourceVersion(e.Object.GetResourceVersion())
		return Result{Object: c.shown(out), Pending: true}, 0, nil
	}
	rev, err := c.store.Update(c.ctx, e.Key, value, e.Revision, c.ttl())
	if err != nil {
		return Result{}, 0, err
	}
	return Result{Object: out, Pending: true}, rev, nil
}

// erase deletes the object from the store. obj is returned to the client.
func (c *call) erase(e *cache.Entry, obj runtime.Object) (Result, int64, error) {
	var rev int64
	if !c.dry {
		var err error
		if rev, err = c.commitOp(store.Op{Action: store.Remove, Key: e.Key, Revision: e.Revision}, nil, e.Object); err !=
			nil {
			return Result{}, 0, err
		}
	}
	if !c.Resource.ReturnsDeleted {
		return Result{Object: &metav1.Status{
			Status: metav1.StatusSuccess,
			Details: &metav1.StatusDetails{
				Name:  c.Name,
				Group: c.Resource.Group,
				Kind:  c.Resource.Plural,
				UID:   e.Object.GetUID(),
			},
		}}, rev, nil
	}
	out, err := c.row.External(obj)
	if err != nil {
		return Result{}, rev, apierrors.NewInternalError(err)
	}
	out.GetObjectKind().SetGroupVersionKind(c.row.GroupVersionKind)
	out.SetResourceVersion(e.Object.GetResourceVersion())
	if rev > 0 {
		out = kind.AtRevision(out, rev)
	}
	return Result{Object: c.shown(out)}, rev, nil
}

// admitDelete runs admission for a delete. As upstream, plugins get the old object only.
func (c *call) admitDelete(e *cache.Entry, o *metav1.DeleteOptions) error {
	if c.admission != nil && !c.admission.Handles(admission.Delete) {
		return nil
	}
	old, err := c.internal(e)
	if err != nil {
		return err
	}
	if err := c.admit(nil, old, admission.Delete, o); err != nil {
		return err
	}
	return c.validate(nil, old, c.Name, admission.Delete, o)
}

// finalizers returns an object's finalizers at the start of its deletion, by upstream's rules for garbage collection:
// the requested propagation policy wins over a finalizer that is already set, which wins over the kind's default.
func (c *call) finalizers(have []string, o *metav1.DeleteOptions) []string {
	policy := rest.GarbageCollectionPolicy("")
	if g, ok := c.strategy().(rest.GarbageCollectionDeleteStrategy); ok {
		policy = g.DefaultGarbageCollectionPolicy(c.ctx)
	}
	var orphan, foreground bool
	switch {
	case policy == rest.Unsupported:
	case o.OrphanDependents != nil: //nolint:staticcheck // deprecated, but clients send it
		orphan = *o.OrphanDependents //nolint:staticcheck
	case o.PropagationPolicy != nil:
		orphan = *o.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *o.PropagationPolicy == metav1.DeletePropagationForeground
	case slices.Contains(have, metav1.FinalizerOrphanDependents):
		orphan = true
	case slices.Contains(have, metav1.FinalizerDeleteDependents):
		foreground = true
	default:
		orphan = policy == rest.OrphanDependents
	}
	want := make([]string, 0, len(have)+1)
	for _, f := range have {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			want = append(want, f)
		}
	}
	if orphan {
		want = append(want, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		want = append(want, metav1.FinalizerDeleteDependents)
	}
	return want
}

func markDeleting(m metav1.Object, now time.Time) {
	was := m.GetDeletionTimestamp()
	if was == nil && m.GetGeneration() > 0 {
		m.SetGeneration(m.GetGeneration() + 1)
	}
	if was == nil || was.After(now) {
		m.SetDeletionTimestamp(new(metav1.NewTime(now)))
	}
	m.SetDeletionGracePeriodSeconds(new(int64))
}
