package localsnapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine"
)

var (
	errUnreachable = errors.New("this process has no connection to nodes")
	// errWaits means that the request waits in turns, and is enqueued when the node is less busy.
	errWaits = errors.New("the node is busy")
)

// ask calls f, which sends a request to a node. If the node is busy, it queues req instead and returns errWaits.
func (r *reconciler) ask(of turn, req engine.Request, f func() error) error {
	if !r.turns.take(of, req) {
		return errWaits
	}
	defer func() {
		for waited := range r.turns.end(of) {
			r.Enqueue(waited, 0)
		}
	}()
	return f()
}

func (r *reconciler) content(ctx context.Context, req engine.Request) error {
	var c snapshots.VolumeSnapshotContent
	if err := r.Cache.Get(ctx, req.NamespacedName, &c); err != nil {
		return err
	}
	s := State{Content: &c}
	var err error
	if s.Nodes, err = r.allNodes(ctx); err != nil {
		return err
	}
	if handle := c.Spec.Source.VolumeHandle; handle != nil {
		if s.Volume, err = engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", *handle); err != nil {
			return err
		}
	}
	switch step := PlanContent(s); step.Op {
	case Begin:
		return r.Client.Update(ctx, begun(&c, step.Node)) // which causes an event
	case Take, Find:
		return r.take(ctx, req, s, step)
	case Remove:
		return r.remove(ctx, req, &c, step)
	case Release:
		return r.release(ctx, &c)
	case Fail:
		return r.fail(ctx, &c, step.Error)
	case Nothing:
	}
	return nil
}

// take makes a node take or find a snapshot, and writes the result to the content's status.
func (r *reconciler) take(ctx context.Context, req engine.Request, s State, step Step) error {
	c := s.Content
	if r.nodes == nil {
		return r.fail(ctx, c, errUnreachable.Error())
	}
	var got storage.Snapshot
	err := r.ask(turn{step.Node.Name, step.Op == Take}, req, func() (err error) {
		if step.Op == Find {
			got, err = r.nodes.Find(ctx, step.Node, step.Snapshot)
			return err
		}
		size := s.Volume.Spec.Capacity[corev1.ResourceStorage]
		got, err = r.nodes.Take(ctx, step.Node, step.Snapshot, s.Volume.Name, size.Value(), func(bytes uint64) {
			r.Events.Event(c, corev1.EventTypeNormal, "CopyingVolume", "%d GiB of volume %q copied on node %q", bytes>>30,
				s.Volume.Name, step.Node.Name)
		})
		if err != nil {
			return err
		}
		return r.stillThere(ctx, s.Volume.Name)
	})
	if later(err) {
		return err
	}
	if err != nil {
		return errors.Join(err, r.fail(ctx, c, err.Error()))
	}
	return r.Client.Status().Update(ctx, taken(c, step.Node, step.Snapshot, got))
}

// stillThere returns an error if a copied volume was deleted in the meantime: the node would have treated a
// missing directory as a volume that was never used.
func (r *reconciler) stillThere(ctx context.Context, volume string) error {
	v, err := engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", volume)
	if err == nil && (v == nil || v.DeletionTimestamp != nil) {
		return fmt.Errorf("volume %q was deleted while it was copied", volume)
	}
	return err
}

// fail records an error in an event and in a content's status. Its VolumeSnapshot copies the status.
func (r *reconciler) fail(ctx context.Context, c *snapshots.VolumeSnapshotContent, message string) error {
	r.Events.Event(c, corev1.EventTypeWarning, "SnapshotCreationFailed", "Failed to create snapshot: %s", message)
	next := failed(c, message, r.Now())
	if next == nil {
		return nil
	}
	return r.Client.Status().Update(ctx, next)
}

// remove makes the node remove a snapshot, and then releases its content. Errors are retried.
func (r *reconciler) remove(ctx context.Context, req engine.Request, c *snapshots.VolumeSnapshotContent,
	step Step) error {
	var err error
	switch {
	case step.Node == nil:
		r.Events.Event(c, corev1.EventTypeWarning, "SnapshotDeleteError",
			"the node of snapshot %q no longer exists: what its machine still holds was not removed", step.Snapshot)
	case r.nodes == nil:
		err = errUnreachable
	default:
		err = r.ask(turn{step.Node.Name, false}, req, func() error { return r.nodes.Remove(ctx, step.Node, step.Snapshot) })
	}
	if later(err) {
		return err
	}
	if err != nil {
		r.Events.Event(c, corev1.EventTypeWarning, "SnapshotDeleteError", "Failed to delete snapshot: %s", err.Error())
		return err
	}
	return r.release(ctx, c)
}

func (r *reconciler) release(ctx context.Context, c *snapshots.VolumeSnapshotContent) error {
	next := c.DeepCopy()
	controllerutil.RemoveFinalizer(next, snapshots.ContentFinalizer)
	return r.Client.Update(ctx, next)
}

// restore creates the volume of a claim that waits for a copy.
func (r *reconciler) restore(ctx context.Context, key engine.Request) error {
	claim, err := engine.Find[corev1.PersistentVolumeClaim](ctx, r.Cache, key.Namespace, key.Name)
	if err != nil || claim == nil || !wanted(claim) {
		return err
	}
	if v, err := engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", storage.VolumeName(claim.UID)); v !=
		nil || err != nil {
		return err
	}
	s, err := r.observe(ctx, claim)
	if err != nil {
		return err
	}
	volume, why := PlanRestore(s)
	if why != "" {
		r.Events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed",
			"Failed to provision volume with StorageClass %q: %s", helpers.GetPersistentVolumeClaimClass(claim), why)
		return nil
	}
	err = r.Client.Create(ctx, volume)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err == nil {
		r.Events.Event(claim, corev1.EventTypeNormal, "Provisioning", "Volume %s is being filled from %s", volume.Name,
			volume.Annotations[storage.ContentAnnotation])
	}
	return err
}

func (r *reconciler) observe(ctx context.Context, claim *corev1.PersistentVolumeClaim) (Restore, error) {
	s := Restore{Claim: claim}
	var err error
	if s.Nodes, err = r.allNodes(ctx); err != nil {
		return s, err
	}
	class := helpers.GetPersistentVolumeClaimClass(claim)
	if s.Class, err = engine.Find[storagev1.StorageClass](ctx, r.Cache, "", class); err != nil {
		return s, err
	}
	kind, name, why := source(claim)
	if why != "" {
		return s, nil
	}
	if kind == storage.FromVolume {
		s.From, err = engine.Find[corev1.PersistentVolumeClaim](ctx, r.Cache, claim.Namespace, name)
		if err == nil && s.From != nil {
			s.Volume, err = engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", s.From.Spec.VolumeName)
		}
		return s, err
	}
	s.Snapshot, err = engine.Find[snapshots.VolumeSnapshot](ctx, r.Cache, claim.Namespace, name)
	if err == nil && s.Snapshot != nil && s.Snapshot.Status != nil &&
		s.Snapshot.Status.BoundVolumeSnapshotContentName != nil {
		s.Content, err = engine.Find[snapshots.VolumeSnapshotContent](ctx, r.Cache, "",
			*s.Snapshot.Status.BoundVolumeSnapshotContentName)
	}
	return s, err
}

// fill makes a node fill a volume's directory. It then marks the volume as copied, so that its claim is bound.
func (r *reconciler) fill(ctx context.Context, req engine.Request) error {
	name := req.Name
	v, err := engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", name)
	if err != nil || v == nil || !unfilled(v) {
		return err
	}
	all, err := r.allNodes(ctx)
	if err != nil {
		return err
	}
	about := client.Object(v)
	if ref := v.Spec.ClaimRef; ref != nil {
		claim, err := engine.Find[corev1.PersistentVolumeClaim](ctx, r.Cache, ref.Namespace, ref.Name)
		if err == nil && claim != nil {
			about = claim
		}
	}
	kind, source, _ := strings.Cut(v.Annotations[storage.ContentAnnotation], "/")
	node := State{Nodes: all}.host(storage.HostOf(v))
	if err = r.fillOn(ctx, req, node, v, kind, source, about); later(err) {
		return err
	} else if err != nil {
		r.Events.Event(about, corev1.EventTypeWarning, "ProvisioningFailed", "could not fill volume %q: %s", v.Name,
			err.Error())
		return err
	}
	next := v.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, storage.CopiedAnnotation, "true")
	if err := r.Client.Update(ctx, next); err != nil {
		if failed := r.discard(ctx, node, name); failed != nil {
			r.Log.Warn("could not remove the copy for a volume that was deleted meanwhile", "volume", name, "node", node.Name,
				"error", failed)
		}
		return err
	}
	r.Events.Event(about, corev1.EventTypeNormal, "ProvisioningSucceeded",
		"Successfully provisioned volume %s using %s, as a copy of %s %s", v.Name, storage.Provisioner, kind, source)
	return nil
}

// discard removes the directory of a volume that was deleted while it was being filled, because the regular
// removal may have run before the copy.
func (r *reconciler) discard(ctx context.Context, node *corev1.Node, name string) error {
	var now corev1.PersistentVolume
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &now)
	if err == nil && now.DeletionTimestamp == nil || client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.nodes.Discard(ctx, node, name)
}

func (r *reconciler) fillOn(ctx context.Context, req engine.Request, node *corev1.Node, v *corev1.PersistentVolume,
	kind, source string, about client.Object) error {
	switch {
	case node == nil:
		return fmt.Errorf("the node with the hostname %q does not exist", storage.HostOf(v))
	case r.nodes == nil:
		return errUnreachable
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	err := r.ask(turn{node.Name, true}, req, func() error {
		return r.nodes.Fill(ctx, node, v.Name, kind, source, size.Value(), func(bytes uint64) {
			r.Events.Event(about, corev1.EventTypeNormal, "CopyingVolume", "%d GiB of %s %s copied on node %q", bytes>>30, kind,
				source, node.Name)
		})
	})
	if err != nil || kind != storage.FromVolume {
		return err
	}
	return r.stillThere(ctx, source)
}

// later reports whether an error only means that the request must be retried.
func later(err error) bool { return errors.Is(err, errWaits) || errors.Is(err, storage.ErrBusy) }

func (r *reconciler) allNodes(ctx context.Context) ([]*corev1.Node, error) {
	var list corev1.NodeList
	if err := r.Cache.List(ctx, &list); err != nil {
		return nil, err
	}
	return engine.Pointers(list.Items), nil
}
