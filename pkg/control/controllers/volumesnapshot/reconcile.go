// Package volumesnapshot binds VolumeSnapshots and VolumeGroupSnapshots to their contents, as upstream's snapshot
// controller does. Another program takes and deletes the snapshots: the csi-snapshotter of each CSI driver, and
// package localsnapshot for local volumes.
//
// Its invariants: a snapshot or a group gets one content. A claim is not deleted while a snapshot of it is being
// taken, and a snapshot not while a claim is being restored from it or its group exists. The plans return one
// write at a time, so that each may be interrupted.
package volumesnapshot

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// Indexes: snapshots by their claim, and claims that are being restored by their snapshot.
const (
	claimIndex  = "snapshot.claim"
	sourceIndex = "claim.snapshot"
)

// ofKindClaim is the kind of requests for claims.
const ofKindClaim = "claim"

// New declares the reconciler. Its requests are snapshots, contents (without a namespace) and claims (ofKindClaim).
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "volumesnapshot",
		When: &snapshots.VolumeSnapshot{},
		Watches: []engine.Watch{
			{Object: &snapshots.VolumeSnapshot{}, Map: ofSnapshot},
			{Object: &snapshots.VolumeSnapshotContent{}, Map: ofContent},
			{Object: &snapshots.VolumeSnapshotClass{}, Map: ofClass},
			{Object: &corev1.PersistentVolumeClaim{}, Map: ofClaim},
			{Object: &corev1.PersistentVolume{}, Map: ofVolume},
			{Object: &snapshots.VolumeGroupSnapshot{}, Map: ofGroup, Optional: true},
			{Object: &snapshots.VolumeGroupSnapshotContent{}, Map: ofDriversGroup, Optional: true},
		},
		Writes: []engine.Write{
			{
				Object: &snapshots.VolumeSnapshot{},
				Parts:  []engine.Part{engine.Spec, engine.Metadata, engine.Finalizers, engine.Status},
			},
			{
				Object: &snapshots.VolumeSnapshotContent{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata, engine.Finalizers},
			},
			{Object: &corev1.PersistentVolumeClaim{}, Parts: []engine.Part{engine.Finalizers}},
		},
		Indexes: []engine.Index{
			{Object: &snapshots.VolumeSnapshot{}, Name: claimIndex, Values: func(o client.Object) []string {
				if v, ok := o.(*snapshots.VolumeSnapshot); ok && v.Spec.Source.PersistentVolumeClaimName != nil {
					return []string{*v.Spec.Source.PersistentVolumeClaimName}
				}
				return nil
			}},
			claimsBySource, snapshotsByGroup, groupContentsByHandle, contentsByGroupHandle,
		},
		New: func(env engine.Env) engine.Func {
			r := &reconciler{env}
			return r.follow(r.plan)
		},
	}
}

// source returns the name of the snapshot that a claim is restored from, or nothing.
func source(c *corev1.PersistentVolumeClaim) []string {
	if s := c.Spec.DataSource; s != nil && s.Kind == "VolumeSnapshot" && s.APIGroup != nil &&
		*s.APIGroup == snapshots.GroupVersion.Group {
		return []string{s.Name}
	}
	return nil
}

// ofSnapshot maps a snapshot to itself and to its claim, which may be protected for it.
func ofSnapshot(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	out := []engine.Request{engine.RequestFor(o.GetNamespace(), o.GetName())}
	if v, ok := o.(*snapshots.VolumeSnapshot); ok && v.Spec.Source.PersistentVolumeClaimName != nil {
		out = append(out, engine.RequestOf(ofKindClaim, v.Namespace, *v.Spec.Source.PersistentVolumeClaimName))
	}
	return out
}

func ofContent(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	out := []engine.Request{engine.RequestFor("", o.GetName())}
	if c, ok := o.(*snapshots.VolumeSnapshotContent); ok {
		out = append(out, engine.RequestFor(c.Spec.VolumeSnapshotRef.Namespace, c.Spec.VolumeSnapshotRef.Name))
	}
	return out
}

// ofClass maps a class to the snapshots without a content.
func ofClass(ctx context.Context, env engine.Env, _ client.Object) []engine.Request {
	var list snapshots.VolumeSnapshotList
	if err := env.Cache.List(ctx, &list); err != nil {
		env.Log.Warn("could not list the snapshots that wait for a class", "error", err)
		return nil
	}
	return engine.Requests(list.Items, func(v *snapshots.VolumeSnapshot) bool {
		return v.Status == nil || v.Status.BoundVolumeSnapshotContentName == nil
	})
}

// ofClaim maps a claim to its snapshots, and to the snapshot that it is restored from.
func ofClaim(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	out := ofClaimNamed(ctx, env, o.GetNamespace(), o.GetName())
	if c, ok := o.(*corev1.PersistentVolumeClaim); ok {
		for _, name := range source(c) {
			out = append(out, engine.RequestFor(c.Namespace, name))
		}
	}
	return out
}

// ofVolume maps a volume to its claim's snapshots.
func ofVolume(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
		return ofClaimNamed(ctx, env, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	}
	return nil
}

func ofClaimNamed(ctx context.Context, env engine.Env, namespace, name string) []engine.Request {
	var list snapshots.VolumeSnapshotList
	if err := env.ByIndex(ctx, &list, namespace, claimIndex, name); err != nil {
		env.Log.Warn("could not list the snapshots of a claim", "claim", namespace+"/"+name, "error", err)
		return nil
	}
	return append(engine.Requests(list.Items, nil), engine.RequestOf(ofKindClaim, namespace, name))
}

type reconciler struct{ engine.Env }

// follow returns a function that carries out a plan's write and then plans again.
func (r *reconciler) follow(plan func(context.Context, engine.Request) (Step, error)) engine.Func {
	return func(ctx context.Context, req engine.Request) (engine.Result, error) {
		step, err := plan(ctx, req)
		if err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
		if step.Op != Nothing {
			if err := r.apply(ctx, step); apierrors.IsNotFound(err) {
				return engine.Result{}, nil // its deletion causes an event
			} else if err != nil {
				return engine.Result{}, err
			}
			r.Enqueue(req, 0)
		}
		r.Notify(step.Event)
		return engine.Result{}, nil
	}
}

func (r *reconciler) plan(ctx context.Context, req engine.Request) (Step, error) {
	switch {
	case req.Namespace == "":
		var c snapshots.VolumeSnapshotContent
		if err := r.Cache.Get(ctx, req.NamespacedName, &c); err != nil {
			return Step{}, err
		}
		return PlanContent(&c), nil
	case req.Kind == ofKindClaim:
		return r.planClaim(ctx, req.NamespacedName)
	}
	s, err := r.state(ctx, req)
	if err != nil {
		return Step{}, err
	}
	return PlanSnapshot(s, r.Now()), nil
}

func (r *reconciler) planClaim(ctx context.Context, key client.ObjectKey) (Step, error) {
	var c corev1.PersistentVolumeClaim
	if err := r.Cache.Get(ctx, key, &c); err != nil {
		return Step{}, err
	}
	if !slices.Contains(c.Finalizers, snapshots.ClaimFinalizer) {
		return Step{}, nil
	}
	var list snapshots.VolumeSnapshotList
	if err := r.ByIndex(ctx, &list, key.Namespace, claimIndex, key.Name); err != nil {
		return Step{}, err
	}
	return PlanClaim(&c, engine.Pointers(list.Items)), nil
}

func (r *reconciler) state(ctx context.Context, req engine.Request) (State, error) {
	var v snapshots.VolumeSnapshot
	if err := r.Cache.Get(ctx, req.NamespacedName, &v); err != nil {
		return State{}, err
	}
	s := State{Snapshot: &v}
	var err error
	if s.Content, err = engine.Find[snapshots.VolumeSnapshotContent](ctx, r.Cache, "", contentOf(&v)); err != nil {
		return s, err
	}
	if s.Group, err = r.group(ctx, &v, s.Content); err != nil {
		return s, err
	}
	if v.DeletionTimestamp != nil {
		s.Restoring, err = r.restoring(ctx, &v)
		return s, err
	}
	if s.Content != nil || v.Spec.Source.PersistentVolumeClaimName == nil {
		return s, nil
	}
	var classes snapshots.VolumeSnapshotClassList
	if err := r.Cache.List(ctx, &classes); err != nil {
		return s, err
	}
	s.Classes = engine.Pointers(classes.Items)
	s.Claim, err = engine.Find[corev1.PersistentVolumeClaim](ctx, r.Cache, v.Namespace,
		*v.Spec.Source.PersistentVolumeClaimName)
	if err == nil && s.Claim != nil {
		s.Volume, err = r.volumeOf(ctx, s.Claim)
	}
	return s, err
}

// volumeOf returns the volume of a claim, or nil if it does not exist.
func (r *reconciler) volumeOf(ctx context.Context, c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	return engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", c.Spec.VolumeName)
}

func (r *reconciler) restoring(ctx context.Context, v *snapshots.VolumeSnapshot) (out []string, err error) {
	var claims corev1.PersistentVolumeClaimList
	if err := r.ByIndex(ctx, &claims, v.Namespace, sourceIndex, v.Name); err != nil {
		return nil, err
	}
	for i := range claims.Items {
		out = append(out, claims.Items[i].Name)
	}
	slices.Sort(out)
	return out, nil
}

func (r *reconciler) apply(ctx context.Context, s Step) error {
	switch s.Op {
	case UpdateSnapshot:
		return r.Client.Update(ctx, s.Snapshot)
	case UpdateSnapshotStatus:
		return r.Client.Status().Update(ctx, s.Snapshot)
	case CreateContent:
		return r.create(ctx, s.Content)
	case UpdateContent:
		return r.Client.Update(ctx, s.Content)
	case DeleteContent:
		return r.Client.Delete(ctx, s.Content, engine.Preconditions(s.Content))
	case UpdateClaim:
		return r.Client.Update(ctx, s.Claim)
	case UpdateGroup:
		return r.Client.Update(ctx, s.Group)
	case UpdateGroupStatus:
		return r.Client.Status().Update(ctx, s.Group)
	case CreateGroupContent:
		return r.create(ctx, s.GroupContent)
	case UpdateGroupContent:
		return r.Client.Update(ctx, s.GroupContent)
	case DeleteGroupContent:
		return r.Client.Delete(ctx, s.GroupContent, engine.Preconditions(s.GroupContent))
	case WriteMembers:
		return r.writeMembers(ctx, s)
	case CreateSnapshot:
		return r.create(ctx, s.Snapshot)
	case DeleteSnapshot:
		return client.IgnoreNotFound(r.Client.Delete(ctx, s.Snapshot, engine.Preconditions(s.Snapshot)))
	case UpdateContentStatus:
		return r.Client.Status().Update(ctx, s.Content)
	case Nothing:
	}
	return nil
}

func (r *reconciler) create(ctx context.Context, o client.Object) error {
	err := r.Client.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		return nil // its event will follow
	}
	return err
}
