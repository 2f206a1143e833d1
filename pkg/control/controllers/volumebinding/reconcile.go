// Package volumebinding binds claims and persistent volumes to each other, provisions local volumes (directories on
// nodes) and reclaims released volumes. It protects objects in use from deletion, and reports since when a claim is
// unused. Its invariants: a claim is bound once. A volume is bound to one claim. A directory on a node has a volume
// object until it is removed. PlanClaim and PlanVolume return one write at a time, so that each may be interrupted.
package volumebinding

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	helpers "k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Remove removes a volume's directory from a node. It succeeds if there is none.
type Remove func(ctx context.Context, node *corev1.Node, volume string) error

// Resize sends a node a volume's new size in bytes. It succeeds if the node does not have the directory yet.
type Resize func(ctx context.Context, node *corev1.Node, volume string, size int64) error

// Indexes: unbound claims by class, volumes by class and by claim, pods by claim.
const (
	unboundIndex  = "storage.unbound"
	classIndex    = "storage.class"
	claimRefIndex = "storage.claimRef"
	podIndex      = "storage.claims"
)

// New declares the reconciler. Its requests are claims and, without a namespace, volumes. remove and resize may be
// nil if nodes cannot be reached. Local volumes are then not reclaimed or expanded.
func New(remove Remove, resize Resize) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "persistentvolume", Account: "persistent-volume-binder", Workers: 4,
		Watches: []engine.Watch{
			{Object: &corev1.PersistentVolumeClaim{}, Map: ofClaim},
			{Object: &corev1.PersistentVolume{}, Map: ofVolume},
			{Object: &storagev1.StorageClass{}, Map: ofClass},
			{Object: &corev1.Pod{}, Event: ofPod},
			{Object: &corev1.Node{}, Event: ofNode},
		},
		Writes: []engine.Write{
			{
				Object: &corev1.PersistentVolumeClaim{},
				Parts:  []engine.Part{engine.Spec, engine.Metadata, engine.Finalizers, engine.Status},
			},
			{
				Object: &corev1.PersistentVolume{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata, engine.Finalizers, engine.Status},
			},
		},
		Indexes: []engine.Index{
			{Object: &corev1.PersistentVolumeClaim{}, Name: unboundIndex, Values: func(o client.Object) []string {
				if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Status.Phase != corev1.ClaimBound {
					return []string{helpers.GetPersistentVolumeClaimClass(c)}
				}
				return nil
			}},
			{Object: &corev1.PersistentVolume{}, Name: classIndex, Values: func(o client.Object) []string {
				if v, ok := o.(*corev1.PersistentVolume); ok {
					return []string{helpers.GetPersistentVolumeClass(v)}
				}
				return nil
			}},
			{Object: &corev1.PersistentVolume{}, Name: claimRefIndex, Values: func(o client.Object) []string {
				if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
					return []string{v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name}
				}
				return nil
			}},
			{Object: &corev1.Pod{}, Name: podIndex, Values: func(o client.Object) []string {
				if p, ok := o.(*corev1.Pod); ok {
					return podstate.ClaimNames(p)
				}
				return nil
			}},
		},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{env, remove, resize}).reconcile
		},
	}
}

type reconciler struct {
	engine.Env
	remove Remove
	resize Resize
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	step, err := r.plan(ctx, req)
	if err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if step.Op != Resized {
		r.Notify(step.Event)
	}
	if step.Op == Nothing {
		return engine.Result{}, nil
	}
	if err := r.apply(ctx, step); err != nil {
		if apierrors.IsNotFound(err) {
			return engine.Result{}, nil // its deletion causes an event
		}
		return engine.Result{}, err
	}
	r.Enqueue(req, 0)
	return engine.Result{}, nil
}

func (r *reconciler) plan(ctx context.Context, req engine.Request) (Step, error) {
	if req.Namespace == "" {
		var v corev1.PersistentVolume
		if err := r.Cache.Get(ctx, req.NamespacedName, &v); err != nil {
			return Step{}, err
		}
		var claim *corev1.PersistentVolumeClaim
		if ref := v.Spec.ClaimRef; ref != nil {
			var err error
			if claim, err = r.claim(ctx, ref); err != nil {
				return Step{}, err
			}
		}
		return PlanVolume(&v, claim), nil
	}
	s, err := r.state(ctx, req)
	if err != nil {
		return Step{}, err
	}
	return PlanClaim(s, r.Now()), nil
}

// claim returns the claim of a claimRef, nil if it is gone. It confirms an absence with the API server, because
// the volume may be deleted next.
func (r *reconciler) claim(ctx context.Context, ref *corev1.ObjectReference) (*corev1.PersistentVolumeClaim, error) {
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	var c corev1.PersistentVolumeClaim
	err := r.Cache.Get(ctx, key, &c)
	if err == nil && (ref.UID == "" || ref.UID == c.UID) {
		return &c, nil
	}
	if err == nil || apierrors.IsNotFound(err) {
		err = r.Client.Get(ctx, key, &c)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // it is gone
	}
	return &c, err
}

func (r *reconciler) state(ctx context.Context, req engine.Request) (ClaimState, error) {
	var c corev1.PersistentVolumeClaim
	if err := r.Cache.Get(ctx, req.NamespacedName, &c); err != nil {
		return ClaimState{}, err
	}
	s := ClaimState{Claim: &c}
	if name := c.Spec.VolumeName; name != "" {
		var err error
		if s.Volume, err = engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", name); err != nil {
			return s, err
		}
	}
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, c.Namespace, podIndex, c.Name); err != nil {
		return s, err
	}
	s.Pods = engine.Pointers(pods.Items)
	if c.Spec.VolumeName != "" {
		return s, nil
	}
	class := helpers.GetPersistentVolumeClaimClass(&c)
	var byClass, byClaim corev1.PersistentVolumeList
	if err := r.ByIndex(ctx, &byClass, "", classIndex, class); err != nil {
		return s, err
	}
	if err := r.ByIndex(ctx, &byClaim, "", claimRefIndex, req.String()); err != nil {
		return s, err
	}
	s.Candidates = append(engine.Pointers(byClaim.Items), engine.Pointers(byClass.Items)...)
	var classes storagev1.StorageClassList
	if err := r.Cache.List(ctx, &classes); err != nil {
		return s, err
	}
	all := engine.Pointers(classes.Items)
	s.Default = storage.Default(all)
	for _, one := range all {
		if one.Name == class {
			s.Class = one
		}
	}
	if s.Class != nil && s.Class.Provisioner == storage.Provisioner {
		var nodes corev1.NodeList
		if err := r.Cache.List(ctx, &nodes); err != nil {
			return s, err
		}
		s.Nodes = engine.Pointers(nodes.Items)
	}
	return s, nil
}

func (r *reconciler) apply(ctx context.Context, s Step) error {
	switch s.Op {
	case UpdateClaim:
		return r.Client.Update(ctx, s.Claim)
	case UpdateClaimStatus:
		return r.Client.Status().Update(ctx, s.Claim)
	case CreateVolume:
		err := r.Client.Create(ctx, s.Volume)
		if apierrors.IsAlreadyExists(err) {
			return nil // its event will follow
		}
		return err
	case UpdateVolume:
		return r.Client.Update(ctx, s.Volume)
	case UpdateStatus:
		return r.Client.Status().Update(ctx, s.Volume)
	case DeleteVolume:
		return r.Client.Delete(ctx, s.Volume, engine.Preconditions(s.Volume))
	case RemoveDirectory:
		return r.removeDirectory(ctx, s.Volume)
	case Resized:
		return r.resized(ctx, s)
	case Withdrawn:
		return r.withdrawn(ctx, s)
	case Nothing:
	}
	return nil
}

// removeDirectory removes a volume's directory, and then the finalizer that protects it. Errors are retried, and
// again when the node returns.
func (r *reconciler) removeDirectory(ctx context.Context, v *corev1.PersistentVolume) error {
	err := r.clean(ctx, v)
	if err != nil {
		message := err.Error()
		r.Events.Event(v, corev1.EventTypeWarning, "VolumeFailedDelete", "%s", message)
		if step := phase(v, corev1.VolumeFailed, message); step.Op != Nothing && v.Spec.ClaimRef != nil {
			if err := r.apply(ctx, step); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return err
	}
	next := v.DeepCopy()
	next.Finalizers = without(next.Finalizers, storage.Finalizer)
	return r.Client.Update(ctx, next)
}

func (r *reconciler) clean(ctx context.Context, v *corev1.PersistentVolume) error {
	n, err := r.node(ctx, v)
	switch {
	case err != nil:
		return err
	case n == nil:
		r.Events.Event(v, corev1.EventTypeWarning, "VolumeFailedDelete",
			"node %q no longer exists: what its machine still holds of the volume was not removed", storage.HostOf(v))
		return nil
	case r.remove == nil:
		return fmt.Errorf("cannot remove the volume's directory on node %q: this process has no connection to nodes",
			n.Name)
	}
	return r.remove(ctx, n, v.Name)
}

// node returns the node with a local volume's directory, nil if it is gone.
func (r *reconciler) node(ctx context.Context, v *corev1.PersistentVolume) (*corev1.Node, error) {
	var nodes corev1.NodeList
	if err := r.Cache.List(ctx, &nodes); err != nil {
		return nil, err
	}
	name := storage.HostOf(v)
	for i := range nodes.Items {
		if nodes.Items[i].Labels[corev1.LabelHostname] == name {
			return &nodes.Items[i], nil
		}
	}
	return nil, nil //nolint:nilnil // it is gone
}

// resized sends the node the volume's size, and then writes the new size to the claim's status.
func (r *reconciler) resized(ctx context.Context, s Step) error {
	if err := r.tell(ctx, s.Volume, s.Volume.Spec.Capacity); err != nil {
		return r.notResized(s, err)
	}
	if err := r.Client.Status().Update(ctx, s.Claim); err != nil {
		return err
	}
	r.Notify(s.Event)
	return nil
}

// withdrawn cancels an expansion, unless it has succeeded on the node.
func (r *reconciler) withdrawn(ctx context.Context, s Step) error {
	err := r.tell(ctx, s.Volume, s.Volume.Spec.Capacity)
	switch {
	case err == nil:
		return r.Client.Update(ctx, s.Volume)
	case r.tell(ctx, s.Volume, s.Claim.Status.Capacity) == nil:
		return r.Client.Status().Update(ctx, s.Claim)
	}
	return r.notResized(s, err)
}

func (r *reconciler) notResized(s Step, err error) error {
	r.Events.Event(s.Claim, corev1.EventTypeWarning, "VolumeResizeFailed", "resize volume %q: %s", s.Volume.Name,
		err.Error())
	return err
}

func (r *reconciler) tell(ctx context.Context, v *corev1.PersistentVolume, size corev1.ResourceList) error {
	n, err := r.node(ctx, v)
	switch {
	case err != nil:
		return err
	case n == nil:
		return fmt.Errorf("node %q no longer exists", storage.HostOf(v))
	case r.resize == nil:
		return fmt.Errorf("cannot reach node %q: this process has no connection to nodes", n.Name)
	}
	return r.resize(ctx, n, v.Name, size.Storage().Value())
}
