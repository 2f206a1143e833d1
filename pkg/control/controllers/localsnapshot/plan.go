package localsnapshot

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
)

// Op is what a plan asks for.
type Op string

const (
	Nothing Op = ""
	// Begin writes into the content which node will be asked for the snapshot.
	Begin Op = "begin"
	// Take has the node take the snapshot, and Find asks it for one that exists; then the content's status is written.
	Take Op = "take"
	Find Op = "find"
	// Remove has the node remove the snapshot, and then removes the content's finalizer.
	Remove Op = "remove"
	// Release removes the content's finalizer.
	Release Op = "release"
	// Fail writes the error into the content's status.
	Fail Op = "fail"
)

// Step is what is to be done with a content.
type Step struct {
	Op Op
	// Node and Snapshot are where the snapshot is. Node is nil for one whose node is gone.
	Node     *corev1.Node
	Snapshot string
	// Error is why nothing can be done until something else changes.
	Error string
}

// State is what a content's plan depends on.
type State struct {
	Content *snapshots.VolumeSnapshotContent
	// Volume is the one to take a snapshot of, nil if there is none of that name.
	Volume *corev1.PersistentVolume
	// Nodes are all nodes.
	Nodes []*corev1.Node
}

// PlanContent returns what is to be done with a content of a local volume, as upstream's csi-snapshotter goes for
// drivers. Its invariants: a snapshot on a node has its content, which names the node, until it is removed; it is
// removed only if the content's policy says so, and its VolumeSnapshot is being deleted or was never bound.
func PlanContent(s State) Step {
	c := s.Content
	if c.Spec.Driver != storage.Provisioner {
		return Step{}
	}
	if c.DeletionTimestamp != nil {
		return s.delete()
	}
	if st := c.Status; st != nil && st.ReadyToUse != nil && *st.ReadyToUse {
		return Step{}
	}
	if handle := c.Spec.Source.SnapshotHandle; handle != nil {
		node, snapshot, ok := s.split(*handle)
		switch {
		case !ok:
			return Step{
				Op: Fail, Error: fmt.Sprintf("the snapshot handle %q is not that of a local volume: NODE/SNAPSHOT", *handle),
			}
		case node == nil:
			return Step{Op: Fail, Error: fmt.Sprintf("the node of the snapshot handle %q does not exist", *handle)}
		}
		return Step{Op: Find, Node: node, Snapshot: snapshot}
	}
	v := s.Volume
	switch {
	case v == nil || !storage.Ours(v):
		return Step{
			Op: Fail,
			Error: fmt.Sprintf("there is no persistentvolume %q that %s provisioned", *c.Spec.Source.VolumeHandle,
				storage.Provisioner),
		}
	case v.DeletionTimestamp != nil: // its directory may be gone, and would be taken for one that was never used
		return Step{Op: Fail, Error: fmt.Sprintf("persistentvolume %q is being deleted", v.Name)}
	case s.host(storage.HostOf(v)) == nil:
		return Step{
			Op:    Fail,
			Error: fmt.Sprintf("the node with the hostname %q, which has the volume, does not exist", storage.HostOf(v)),
		}
	case v.Annotations[storage.ContentAnnotation] != "" && v.Annotations[storage.CopiedAnnotation] == "":
		return Step{Op: Fail, Error: "the volume itself is still being made as a copy"}
	}
	step := Step{Op: Take, Node: s.host(storage.HostOf(v)), Snapshot: c.Name}
	if c.Annotations[storage.SnapshotNodeAnnotation] != step.Node.Name {
		step.Op = Begin
	}
	return step
}

// delete is for a content that is being deleted.
func (s State) delete() Step {
	c := s.Content
	unbound := c.Spec.Source.SnapshotHandle != nil && c.Spec.VolumeSnapshotRef.UID == ""
	switch {
	case !controllerutil.ContainsFinalizer(c, snapshots.ContentFinalizer):
		return Step{}
	case !unbound && !metav1.HasAnnotation(c.ObjectMeta, snapshots.DeletingAnnotation):
		return Step{} // until its VolumeSnapshot goes
	case c.Spec.DeletionPolicy != snapshots.Delete:
		return Step{Op: Release}
	}
	step := Step{Op: Remove, Snapshot: c.Name}
	switch {
	case c.Spec.Source.SnapshotHandle != nil:
		var ok bool
		if step.Node, step.Snapshot, ok = s.split(*c.Spec.Source.SnapshotHandle); !ok {
			return Step{Op: Release}
		}
	case c.Status != nil && c.Status.SnapshotHandle != nil:
		step.Node, step.Snapshot, _ = s.split(*c.Status.SnapshotHandle)
	case c.Annotations[storage.SnapshotNodeAnnotation] != "": // it may have been taken, and the answer was lost
		step.Node = s.named(c.Annotations[storage.SnapshotNodeAnnotation])
	default: // no node was asked
		return Step{Op: Release}
	}
	return step
}

// split returns what a snapshot handle names: node is nil if there is none of that name.
func (s State) split(handle string) (node *corev1.Node, snapshot string, ok bool) {
	name, snapshot, ok := strings.Cut(handle, "/")
	if !ok || name == "" || snapshot == "" || strings.Contains(snapshot, "/") {
		return nil, "", false
	}
	return s.named(name), snapshot, true
}

// named returns a node, nil if there is none of that name.
func (s State) named(name string) *corev1.Node {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// host returns the node with a hostname label, nil if there is none.
func (s State) host(name string) *corev1.Node {
	for _, n := range s.Nodes {
		if n.Labels[corev1.LabelHostname] == name {
			return n
		}
	}
	return nil
}

// begun returns a content that says which node will be asked for its snapshot.
func begun(c *snapshots.VolumeSnapshotContent, n *corev1.Node) *snapshots.VolumeSnapshotContent {
	next := c.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, storage.SnapshotNodeAnnotation, n.Name)
	return next
}

// taken returns a content with what its node said of the snapshot.
func taken(c *snapshots.VolumeSnapshotContent, n *corev1.Node, name string,
	s storage.Snapshot) *snapshots.VolumeSnapshotContent {
	next := c.DeepCopy()
	next.Status = &snapshots.VolumeSnapshotContentStatus{
		SnapshotHandle: new(storage.Handle(n.Name, name)),
		CreationTime:   &s.Taken,
		RestoreSize:    &s.Size,
		ReadyToUse:     new(true),
	}
	return next
}

// failed returns a content with an error, nil if it says the same already.
func failed(c *snapshots.VolumeSnapshotContent, message string, now time.Time) *snapshots.VolumeSnapshotContent {
	if st := c.Status; st != nil && st.Error != nil && st.Error.Message != nil && *st.Error.Message == message {
		return nil
	}
	next := c.DeepCopy()
	if next.Status == nil {
		next.Status = &snapshots.VolumeSnapshotContentStatus{}
	}
	at := metav1.NewTime(now)
	next.Status.ReadyToUse, next.Status.Error = new(false), &snapshots.VolumeSnapshotError{Time: &at, Message: &message}
	return next
}
