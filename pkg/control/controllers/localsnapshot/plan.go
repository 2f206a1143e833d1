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

// Op is the operation of a Step.
type Op string

const (
	Nothing Op = ""
	// Begin records in the content which node will take the snapshot.
	Begin Op = "begin"
	// Take makes the node take the snapshot. Find asks it for an existing one. Both then write the content's status.
	Take Op = "take"
	Find Op = "find"
	// Remove makes the node remove the snapshot, and then removes the content's finalizer.
	Remove  Op = "remove"
	Release Op = "release"
	Fail    Op = "fail"
)

// Step is the next step for a content.
type Step struct {
	Op Op
	// Node and Snapshot locate the snapshot. Node is nil if the node is gone.
	Node     *corev1.Node
	Snapshot string
	// Error says why the step is impossible until something changes.
	Error string
}

// State is the input of PlanContent.
type State struct {
	Content *snapshots.VolumeSnapshotContent
	// Volume is the volume to snapshot, nil if it does not exist.
	Volume *corev1.PersistentVolume
	Nodes  []*corev1.Node
}

// PlanContent returns the next step for a content of a local volume, as upstream's csi-snapshotter does for CSI
// drivers. Its invariants: a snapshot on a node has a content that names the node until the snapshot is removed.
// The snapshot is removed only if the content's policy is Delete and its VolumeSnapshot is being deleted or was
// never bound.
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
				Op:    Fail,
				Error: fmt.Sprintf("snapshot handle %q is not of the form NODE/SNAPSHOT of local snapshots", *handle),
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
	case v.DeletionTimestamp != nil: // its directory may be gone, which would look like a volume that was never used
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

func (s State) delete() Step {
	c := s.Content
	unbound := c.Spec.Source.SnapshotHandle != nil && c.Spec.VolumeSnapshotRef.UID == ""
	switch {
	case !controllerutil.ContainsFinalizer(c, snapshots.ContentFinalizer):
		return Step{}
	case !unbound && !metav1.HasAnnotation(c.ObjectMeta, snapshots.DeletingAnnotation):
		return Step{} // its VolumeSnapshot is not being deleted yet
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
	case c.Annotations[storage.SnapshotNodeAnnotation] != "": // it may have been taken, and the answer lost
		step.Node = s.named(c.Annotations[storage.SnapshotNodeAnnotation])
	default: // no node was asked
		return Step{Op: Release}
	}
	return step
}

// split parses a snapshot handle, NODE/SNAPSHOT. node is nil if the node does not exist.
func (s State) split(handle string) (node *corev1.Node, snapshot string, ok bool) {
	name, snapshot, ok := strings.Cut(handle, "/")
	if !ok || name == "" || snapshot == "" || strings.Contains(snapshot, "/") {
		return nil, "", false
	}
	return s.named(name), snapshot, true
}

func (s State) named(name string) *corev1.Node {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

func (s State) host(name string) *corev1.Node {
	for _, n := range s.Nodes {
		if n.Labels[corev1.LabelHostname] == name {
			return n
		}
	}
	return nil
}

func begun(c *snapshots.VolumeSnapshotContent, n *corev1.Node) *snapshots.VolumeSnapshotContent {
	next := c.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, storage.SnapshotNodeAnnotation, n.Name)
	return next
}

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

// failed returns a content with an error, or nil if it already has that error.
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
