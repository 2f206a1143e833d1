package registry

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// hasSpecFinalizers reports whether a namespace still has content to be deleted.
func hasSpecFinalizers(o client.Object) bool {
	ns, ok := o.(*corev1.Namespace)
	return ok && len(ns.Spec.Finalizers) > 0
}

// terminate handles the deletion of a namespace until it is empty: the first request makes it Terminating, and it
// stays until its spec has no finalizers. done is false if the namespace may be deleted from the store.
func (c *call) terminate(e *cache.Entry, obj runtime.Object,
	o *metav1.DeleteOptions) (done bool, _ Result, _ int64, _ error) {
	ns, ok := obj.(*core.Namespace)
	if !ok {
		return false, Result{}, 0, nil
	}
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != ns.UID {
			return true, Result{}, 0, uidMismatch(c.gr(), c.Name, *p.UID, ns.UID)
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != ns.ResourceVersion {
			return true, Result{}, 0, apierrors.NewConflict(c.gr(), c.Name, fmt.Errorf(
				"Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion,
				ns.ResourceVersion))
		}
	}
	if ns.DeletionTimestamp != nil {
		if len(ns.Spec.Finalizers) == 0 {
			return false, Result{}, 0, nil
		}
		res, err := c.show(e)
		res.Pending = true
		return true, res, 0, err
	}
	if err := c.admitDelete(e, o); err != nil {
		return true, Result{}, 0, err
	}
	ns.DeletionTimestamp = new(metav1.Now())
	ns.Status.Phase = core.NamespaceTerminating
	ns.Finalizers = namespaceFinalizers(ns.Finalizers, o)
	res, rev, err := c.mark(e, ns)
	return true, res, rev, err
}

// namespaceFinalizers is like finalizers, with upstream's exception for namespaces: orphanDependents=false means
// foreground deletion.
func namespaceFinalizers(have []string, o *metav1.DeleteOptions) []string {
	orphan := slices.Contains(have, metav1.FinalizerOrphanDependents)
	foreground := slices.Contains(have, metav1.FinalizerDeleteDependents)
	switch {
	case o.OrphanDependents != nil: //nolint:staticcheck // deprecated, but clients send it
		orphan = *o.OrphanDependents //nolint:staticcheck
		foreground = !orphan
	case o.PropagationPolicy != nil:
		orphan = *o.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *o.PropagationPolicy == metav1.DeletePropagationForeground
	}
	want := slices.DeleteFunc(slices.Clone(have), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if orphan {
		want = append(want, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		want = append(want, metav1.FinalizerDeleteDependents)
	}
	return want
}
