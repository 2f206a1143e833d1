package customresources

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/custom"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// emptyWait limits one watch for the deletion of a definition's objects. Afterwards the objects are counted again.
const emptyWait = time.Minute

type reconciler struct {
	*Controller
	env engine.Env
	// follow runs a function in a goroutine that ends with the controller.
	follow func(func(context.Context))
}

// accepted reports whether a definition must be served: its names were accepted, now or earlier.
func accepted(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) ||
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	known := metadata()
	err := r.env.Cache.Get(ctx, req.NamespacedName, known)
	if err == nil && r.isSettled(req.Name, known.ResourceVersion) {
		return engine.Result{}, nil
	}
	var stored apiextensionsv1.CustomResourceDefinition
	if err == nil {
		err = r.env.Cache.Get(ctx, req.NamespacedName, &stored)
	}
	if apierrors.IsNotFound(err) {
		return engine.Result{}, r.gone(ctx, req.Name)
	} else if err != nil {
		return engine.Result{}, err
	}
	if set := r.set(req.Name); set != nil && !set.Of(stored.UID) { // the definition was deleted and recreated
		if err := r.gone(ctx, req.Name); err != nil {
			return engine.Result{}, err
		}
	}
	crd := withOwnStatus(&stored)
	if err := custom.Inspect(crd); err != nil {
		r.env.Log.Error("custom resource definition has an invalid schema", "definition", crd.Name, "error", err)
	}
	if r.names.isBuiltin(crd) {
		custom.Disown(crd)
	}
	serve := accepted(crd)
	if !serve || !custom.SameNames(crd.Spec.Names, crd.Status.AcceptedNames) {
		var waiting []string
		serve, waiting = r.names.accept(crd)
		r.retry(waiting)
	}
	if serve {
		if err := r.serve(ctx, crd.Name, withOwnStatus(crd)); err != nil {
			return engine.Result{}, fmt.Errorf("could not serve custom resource definition: %w", err)
		}
	}
	if err := r.write(ctx, &stored, crd); err != nil {
		return engine.Result{}, err
	}
	if crd.DeletionTimestamp != nil && apihelpers.CRDHasFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return engine.Result{}, r.empty(ctx, crd)
	}
	if crd.DeletionTimestamp == nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) {
		r.settle(crd.Name, crd.ResourceVersion)
	}
	return engine.Result{}, nil
}

// withOwnStatus copies a definition, but shares its spec, which may be large.
func withOwnStatus(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	out := *crd
	crd.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	crd.Status.DeepCopyInto(&out.Status)
	return &out
}

// write stores the status if it changed, and retries definitions that wait for names released by it.
func (r *reconciler) write(ctx context.Context, was, is *apiextensionsv1.CustomResourceDefinition) error {
	if !equality.Semantic.DeepEqual(was.Status, is.Status) {
		if err := r.env.Client.Status().Update(ctx, is); err != nil {
			return ctrl.IgnoreNotFound(err)
		}
	}
	r.retry(r.names.written(is))
	return nil
}

// gone stops serving a deleted definition.
func (r *reconciler) gone(ctx context.Context, name string) error {
	if err := r.serve(ctx, name, nil); err != nil {
		return err
	}
	r.settle(name, "")
	r.retry(r.names.gone(name))
	return nil
}

// retry enqueues definitions that wait for names.
func (r *reconciler) retry(waiting []string) {
	for _, name := range waiting {
		r.env.Enqueue(engine.RequestFor("", name), 0)
	}
}

// empty deletes a definition's objects, and removes its finalizer once none are left.
func (r *reconciler) empty(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	before := withOwnStatus(crd)
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) || r.set(crd.Name) == nil {
		custom.Terminating(crd, apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established")
		return r.release(ctx, crd)
	}
	row := r.set(crd.Name).Rows[0]
	left, err := r.count(ctx, row)
	if err == nil && left == 0 {
		custom.Terminating(crd, apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances")
		return r.release(ctx, crd)
	}
	custom.Terminating(crd, apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress",
		"CustomResource deletion is in progress")
	if err := r.write(ctx, before, crd); err != nil {
		return err
	}
	before = withOwnStatus(crd)
	err = r.cfg.Client.DeleteAllOf(ctx, metadataOf(row))
	if err != nil && !apierrors.IsNotFound(err) {
		custom.Terminating(crd, apiextensionsv1.ConditionTrue, "InstanceDeletionFailed",
			fmt.Sprintf("could not issue all deletes: %v", err))
		if err := r.write(ctx, before, crd); err != nil {
			return err
		}
		return err
	}
	if left, err = r.count(ctx, row); err != nil {
		return err
	}
	if left == 0 {
		custom.Terminating(crd, apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances")
		return r.release(ctx, crd)
	}
	r.await(crd.Name, row)
	return nil
}

// release removes the finalizer. It bypasses the reconciler's client, which would wait until the cache shows the
// definition, and that is deleted by this write.
func (r *reconciler) release(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
	return ctrl.IgnoreNotFound(r.cfg.Client.Status().Update(ctx, crd))
}

func metadataOf(row *kind.Resource) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(row.GroupVersionKind)
	return o
}

func metadataListOf(row *kind.Resource) *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(row.GroupVersion().WithKind(row.Kind + "List"))
	return l
}

func (r *reconciler) count(ctx context.Context, row *kind.Resource) (int, error) {
	l := metadataListOf(row)
	err := r.cfg.Client.List(ctx, l)
	return len(l.Items), err
}

// await enqueues a definition after the deletion of its objects, or after emptyWait.
func (r *reconciler) await(name string, row *kind.Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.emptying[name] {
		return
	}
	r.emptying[name] = true
	r.follow(func(ctx context.Context) {
		r.untilEmpty(ctx, row)
		r.mu.Lock()
		delete(r.emptying, name)
		r.mu.Unlock()
		r.env.Enqueue(engine.RequestFor("", name), 0)
	})
}

// untilEmpty returns when no objects of a kind are left, or after emptyWait.
func (r *reconciler) untilEmpty(ctx context.Context, row *kind.Resource) {
	ctx, cancel := context.WithTimeout(ctx, emptyWait)
	defer cancel()
	w, err := r.cfg.Client.Watch(ctx, metadataListOf(row))
	if err != nil {
		<-ctx.Done()
		return
	}
	defer w.Stop()
	if left, err := r.count(ctx, row); err != nil || left == 0 {
		return
	}
	left := map[string]bool{}
	for e := range w.ResultChan() {
		o, ok := e.Object.(*metav1.PartialObjectMetadata)
		if !ok {
			return // the watch failed
		}
		key := o.Namespace + "/" + o.Name
		if e.Type != watch.Deleted {
			left[key] = true
		} else if delete(left, key); len(left) == 0 {
			return
		}
	}
}
