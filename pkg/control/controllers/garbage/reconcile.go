// Package garbage deletes objects whose owners are gone. It implements background, foreground and orphaning deletion.
// Its invariants: it deletes an object only after the API server has confirmed that each owner is gone or waits for its
// dependents. An aggregated API server that does not answer blocks only decisions about its own objects.
package garbage

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// New declares the reconciler. kinds are the kinds of this server. elsewhere serves the kinds of aggregated API
// servers, and may be nil.
func New(kinds engine.Kinds, elsewhere aggregated.Remotes) *engine.Reconciler {
	var r *reconciler
	return &engine.Reconciler{
		Name: "garbage", Account: "generic-garbage-collector", Workers: 8,
		Writes: []engine.Write{{Parts: []engine.Part{engine.Delete, engine.Metadata, engine.Finalizers}}},
		Every: &engine.Every{
			Kinds: kinds,
			Object: func(k engine.Kind) client.Object {
				if !collected(k) {
					return nil
				}
				return k.Metadata()
			},
			Event: func(_ context.Context, _ engine.Env, k engine.Kind, was, is client.Object) []engine.Request {
				if r.others != nil {
					r.others.notice(k.GroupVersionKind, was, is)
				}
				return r.g.see(k.GroupVersionKind, was, is)
			},
		},
		New: func(env engine.Env) engine.Func {
			g := newGraph()
			r = &reconciler{Env: env, g: g, known: known{kinds: kinds}, others: newOthers(env, g, elsewhere)}
			return r.reconcile
		},
	}
}

// skipped are kinds that neither own nor are owned but change often.
var skipped = map[schema.GroupKind]bool{{Kind: "Event"}: true, {Group: "events.k8s.io", Kind: "Event"}: true}

func collected(k engine.Kind) bool { return k.Deletable && !skipped[k.GroupKind()] }

func metadata(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(gvk)
	return o
}

type reconciler struct {
	engine.Env
	g      *graph
	known  known
	others *others // nil without aggregated API servers
}

// known caches the kinds that may own or be owned. It rebuilds the map only after a change of the kinds.
type known struct {
	kinds engine.Kinds

	mu      sync.Mutex
	made    map[schema.GroupKind]engine.Kind
	changed <-chan struct{}
}

func (k *known) now() map[schema.GroupKind]engine.Kind {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.changed:
		k.made = nil
	default:
	}
	if k.made == nil {
		var kinds []engine.Kind
		kinds, k.changed = k.kinds.Stored()
		k.made = make(map[schema.GroupKind]engine.Kind, len(kinds))
		for _, kind := range kinds {
			if collected(kind) {
				k.made[kind.GroupKind()] = kind
			}
		}
	}
	return k.made
}

// at completes an object's address: it sets the watched version, and removes the namespace for cluster-scoped kinds.
func (r *reconciler) at(o object) (object, bool) {
	k, ok := r.known.now()[o.GroupKind()]
	if other := r.elsewhere(o.GroupKind()); !ok && other != nil {
		k, ok = other.Kind, true
	}
	o.GroupVersionKind = k.GroupVersionKind
	if !k.Namespaced {
		o.Namespace = ""
	}
	return o, ok
}

// elsewhere returns a kind of an aggregated API server. It returns nil for kinds that this server stores.
func (r *reconciler) elsewhere(gk schema.GroupKind) *other {
	if _, here := r.known.now()[gk]; here {
		return nil
	}
	return r.others.of(gk)
}

func (r *reconciler) get(ctx context.Context, o object) (*metav1.PartialObjectMetadata, error) {
	if k := r.elsewhere(o.GroupKind()); k != nil {
		m := k.get(o.Namespace, o.Name)
		if m == nil {
			return nil, apierrors.NewNotFound(schema.GroupResource{Group: o.Group, Resource: k.Resource}, o.Name)
		}
		return m, nil
	}
	m := metadata(o.GroupVersionKind)
	err := r.Cache.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: o.Name}, m)
	m.SetGroupVersionKind(o.GroupVersionKind)
	return m, err
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	packed, ok := unpack(req)
	if !ok {
		return engine.Result{}, nil
	}
	self, ok := r.at(packed)
	if !ok {
		return engine.Result{}, nil
	}
	r.others.forget(self) // it is remembered again if it still has to wait
	m, err := r.get(ctx, self)
	if err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	o, deps, err := r.observe(ctx, self, m)
	if err != nil {
		return engine.Result{}, err
	}
	a := Plan(o)
	switch {
	case a.Wait > 0:
		return engine.Result{RequeueAfter: a.Wait}, nil
	case a.Orphan:
		err = r.orphan(ctx, m, deps)
	case a.Finish:
		err = r.dropFinalizer(ctx, m, metav1.FinalizerDeleteDependents)
	case a.Collect:
		for _, d := range deps {
			r.Enqueue(d.request(), 0)
		}
	case a.Refs != nil:
		err = r.patch(ctx, m, map[string]any{"ownerReferences": a.Refs})
	case a.Delete != "":
		err = r.remove(ctx, m, a)
	}
	return engine.Result{}, client.IgnoreNotFound(err)
}

// observe reads an object's owners or, if it is being deleted, its dependents.
func (r *reconciler) observe(ctx context.Context, self object,
	m *metav1.PartialObjectMetadata) (o Observed, deps []object, err error) {
	o.Object = m
	going := m.DeletionTimestamp != nil
	if going && !waits(m) {
		return o, nil, nil
	}
	if !going {
		for _, ref := range m.OwnerReferences {
			state, err := r.owner(ctx, self, ref)
			if err != nil {
				return o, nil, err
			}
			o.Owners = append(o.Owners, state)
		}
		if !slices.Contains(o.Owners, Waiting) {
			return o, nil, nil // its dependents are irrelevant
		}
	}
	if o.Early = r.others.early(self); o.Early > 0 {
		return o, nil, nil
	}
	candidates := r.g.of(m.UID)
	if going {
		// This decision is final, so list all dependents: the graph may be stale.
		if candidates, err = r.scan(ctx, self, m.UID); err != nil {
			return o, nil, err
		}
	}
	for _, d := range candidates {
		if _, known := r.at(d); !known {
			continue // its kind is no longer watched
		}
		dm, err := r.get(ctx, d)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return o, nil, err
		}
		i := slices.IndexFunc(dm.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == m.UID })
		if i < 0 {
			continue
		}
		deps = append(deps, d)
		o.Dependents++
		if blocks(dm.OwnerReferences[i]) {
			o.Blocking++
		}
		o.Circle = o.Circle || dm.DeletionTimestamp != nil && slices.Contains(dm.Finalizers, metav1.FinalizerDeleteDependents)
	}
	return o, deps, nil
}

// scan lists an owner's dependents from the cache, and from the watched objects of aggregated API servers.
func (r *reconciler) scan(ctx context.Context, of object, uid types.UID) (out []object, err error) {
	for _, k := range r.known.now() {
		if of.Namespace != "" && !k.Namespaced {
			continue
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(k.GroupVersionKind.GroupVersion().WithKind(k.Kind + "List"))
		if err := r.Cache.List(ctx, list, client.InNamespace(of.Namespace)); err != nil {
			return nil, err
		}
		for i := range list.Items {
			d := &list.Items[i]
			if slices.ContainsFunc(d.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == uid }) {
				out = append(out, object{k.GroupVersionKind, d.Namespace, d.Name})
			}
		}
	}
	for _, k := range r.others.all() {
		if of.Namespace == "" || k.Namespaced {
			out = append(out, k.owned(uid)...)
		}
	}
	return out, nil
}

// owner returns the state of an owner. It confirms an absence with the API server, because the cache may be stale.
func (r *reconciler) owner(ctx context.Context, of object, ref metav1.OwnerReference) (Owner, error) {
	named := ownerOf(of, ref)
	at, ok := r.at(named)
	if !ok {
		r.others.await(named.GroupKind(), of)
		if _, err := r.get(ctx, of); apierrors.IsNotFound(err) {
			r.others.forget(of) // it was deleted concurrently
		}
		return Solid, nil
	}
	if r.g.isAbsent(ref.UID) {
		return Absent, nil
	}
	m, err := r.get(ctx, at)
	switch {
	case err == nil && m.UID == ref.UID:
		if m.DeletionTimestamp != nil && slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents) {
			return Waiting, nil
		}
		return Solid, nil
	case err != nil && !apierrors.IsNotFound(err):
		return Solid, err
	}
	gone, err := r.asked(ctx, at, ref.UID)
	if err != nil {
		return Solid, err
	}
	if !gone {
		// The cache will catch up, but that event enqueues nothing, so retry.
		return Solid, apierrors.NewConflict(schema.GroupResource{Group: at.Group, Resource: at.Kind}, at.Name, nil)
	}
	r.g.setAbsent(ref.UID)
	return Absent, nil
}

// asked checks with the API server, bypassing caches, whether the object with that UID is gone. It uses a dry-run
// write that changes nothing.
func (r *reconciler) asked(ctx context.Context, at object, uid types.UID) (gone bool, err error) {
	if k := r.elsewhere(at.GroupKind()); k != nil {
		m, err := r.others.read(ctx, k, at)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return err == nil && m.UID != uid, err
	}
	m := metadata(at.GroupVersionKind)
	m.Namespace, m.Name = at.Namespace, at.Name
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}})
	if err != nil {
		return false, err
	}
	err = r.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, patch), client.DryRunAll)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return true, nil
	}
	return false, err
}

// patch writes metadata. It conflicts if the object has changed since it was read.
func (r *reconciler) patch(ctx context.Context, m *metav1.PartialObjectMetadata, fields map[string]any) error {
	data, err := patchOf(m, fields)
	if err != nil {
		return err
	}
	if k := r.elsewhere(m.GroupVersionKind().GroupKind()); k != nil {
		return r.others.patch(ctx, k.Kind, m, data)
	}
	o := metadata(m.GroupVersionKind())
	o.Namespace, o.Name = m.Namespace, m.Name
	return r.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, data))
}

// patchOf returns a merge patch of metadata that conflicts if the object has changed since it was read.
func patchOf(m *metav1.PartialObjectMetadata, fields map[string]any) ([]byte, error) {
	fields["uid"], fields["resourceVersion"] = m.UID, m.ResourceVersion
	return json.Marshal(map[string]any{"metadata": fields})
}

func (r *reconciler) remove(ctx context.Context, m *metav1.PartialObjectMetadata, a Action) error {
	if a.Unblock {
		refs := slices.Clone(m.OwnerReferences)
		for i := range refs {
			refs[i].BlockOwnerDeletion = nil
		}
		return r.patch(ctx, m, map[string]any{"ownerReferences": refs}) // its event enqueues the object again
	}
	if k := r.elsewhere(m.GroupVersionKind().GroupKind()); k != nil {
		return r.others.remove(ctx, k, m, a.Delete)
	}
	uid, version := m.UID, m.ResourceVersion
	return r.Client.Delete(ctx, m, client.Preconditions{UID: &uid, ResourceVersion: &version},
		client.PropagationPolicy(a.Delete))
}

// orphan removes the dependents' owner references, and then the owner's finalizer.
func (r *reconciler) orphan(ctx context.Context, m *metav1.PartialObjectMetadata, deps []object) error {
	for _, d := range deps {
		dm, err := r.get(ctx, d)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := r.patch(ctx, dm, map[string]any{
			"ownerReferences": without(dm.OwnerReferences, m.UID),
		}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if err := r.others.orphanUnfollowed(ctx, m); err != nil {
		if !apierrors.IsConflict(err) {
			r.Events.Event(m, corev1.EventTypeWarning, "OrphaningFailed",
				"The object stays until its dependents' owner references to it are removed: %v", err)
		}
		return err
	}
	return r.dropFinalizer(ctx, m, metav1.FinalizerOrphanDependents)
}

func (r *reconciler) dropFinalizer(ctx context.Context, m *metav1.PartialObjectMetadata, name string) error {
	left := slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == name })
	return r.patch(ctx, m, map[string]any{"finalizers": left})
}
