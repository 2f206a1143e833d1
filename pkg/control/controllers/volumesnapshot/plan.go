package volumesnapshot

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
)

// State is the input of PlanSnapshot.
type State struct {
	Snapshot *snapshots.VolumeSnapshot
	// Content is the content that the snapshot is or will be bound to, nil if it does not exist.
	Content *snapshots.VolumeSnapshotContent
	// Claim is the claim to snapshot, and Volume its volume. Each is nil if it does not exist.
	Claim   *corev1.PersistentVolumeClaim
	Volume  *corev1.PersistentVolume
	Classes []*snapshots.VolumeSnapshotClass
	// Restoring are the names of the claims that are being restored from the snapshot.
	Restoring []string
	// Group is the snapshot's group, nil if there is none.
	Group *snapshots.VolumeGroupSnapshot
}

// ContentName returns upstream's name of a dynamically provisioned snapshot's content.
func ContentName(snapshot types.UID) string { return "snapcontent-" + string(snapshot) }

func contentOf(s *snapshots.VolumeSnapshot) string {
	if name := s.Spec.Source.VolumeSnapshotContentName; name != nil {
		return *name
	}
	if inGroup(s) {
		if s.Status != nil && s.Status.BoundVolumeSnapshotContentName != nil {
			return *s.Status.BoundVolumeSnapshotContentName
		}
		return memberContent(s.Name)
	}
	return ContentName(s.UID)
}

// PlanSnapshot returns the next step towards a snapshot that is bound to its content and has its status, as
// upstream's controller does. Its invariants: a snapshot gets one content, whose name follows from the snapshot. A
// snapshot never takes its readiness from another snapshot's content. A driver's snapshot that may exist is
// deleted before the snapshot's object.
func PlanSnapshot(s State, now time.Time) Step {
	v := s.Snapshot
	if v.DeletionTimestamp != nil {
		return s.delete()
	}
	if step := s.defaultClass(now); step.Op != Nothing || step.Event != nil {
		return step
	}
	if !controllerutil.ContainsFinalizer(v, snapshots.SourceFinalizer) {
		return updateSnapshot(v, func(v *snapshots.VolumeSnapshot) {
			controllerutil.AddFinalizer(v, snapshots.SourceFinalizer)
		})
	}
	if v.Status != nil && v.Status.BoundVolumeSnapshotContentName != nil &&
		!controllerutil.ContainsFinalizer(v, snapshots.BoundFinalizer) {
		return updateSnapshot(v, func(v *snapshots.VolumeSnapshot) {
			controllerutil.AddFinalizer(v, snapshots.BoundFinalizer)
		})
	}
	switch named := v.Spec.Source.VolumeSnapshotContentName; {
	case s.Content == nil && !ready(v) && inGroup(v) && (named == nil || *named == memberContent(v.Name)):
		return Step{} // the group's plan creates it
	case s.Content == nil && (ready(v) || named != nil):
		return s.failed(now, "SnapshotContentMissing", "VolumeSnapshotContent is missing")
	case s.Content == nil:
		return s.take(now)
	}
	if step := s.mismatch(now); step.Op != Nothing || step.Event != nil {
		return step
	}
	spec := &s.Content.Spec
	switch bound := spec.VolumeSnapshotRef.UID != ""; {
	case ready(v) && !bound:
		return s.failed(now, "SnapshotMisbound", "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly")
	case !ready(v) && (!bound || spec.VolumeSnapshotClassName == nil && v.Spec.VolumeSnapshotClassName != nil):
		return updateContent(s.Content, func(c *snapshots.VolumeSnapshotContent) {
			c.Spec.VolumeSnapshotRef.UID = v.UID
			if c.Spec.VolumeSnapshotClassName == nil {
				c.Spec.VolumeSnapshotClassName = v.Spec.VolumeSnapshotClassName
			}
		})
	}
	if step := s.report(); step.Op != Nothing || s.Group == nil || s.Group.DeletionTimestamp != nil || owned(v, s.Group) {
		return step
	}
	// the driver took it as part of this group
	return updateSnapshot(v, func(v *snapshots.VolumeSnapshot) { join(v, s.Group) })
}

func ready(v *snapshots.VolumeSnapshot) bool {
	return v.Status != nil && v.Status.ReadyToUse != nil && *v.Status.ReadyToUse
}

// mismatch returns a failed step if the content is not for this snapshot.
func (s State) mismatch(now time.Time) Step {
	c, v := s.Content, s.Snapshot
	existing := v.Spec.Source.VolumeSnapshotContentName != nil
	switch {
	case existing && c.Spec.Source.SnapshotHandle == nil:
		return s.failed(now, "SnapshotContentMismatch",
			"VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one")
	case !existing && c.Spec.Source.VolumeHandle == nil:
		return s.failed(now, "SnapshotContentMismatch",
			"VolumeSnapshotContent is pre-provisioned while expecting a dynamically provisioned one")
	case !names(c, v):
		return s.failed(now, "SnapshotContentMisbound",
			fmt.Sprintf("VolumeSnapshotContent [%s] is bound to a different snapshot", c.Name))
	}
	return Step{}
}

// names reports whether a content is bound to a snapshot, or can be bound to it.
func names(c *snapshots.VolumeSnapshotContent, v *snapshots.VolumeSnapshot) bool {
	ref := c.Spec.VolumeSnapshotRef
	return ref.Namespace == v.Namespace && ref.Name == v.Name && (ref.UID == "" || ref.UID == v.UID)
}

func (s State) report() Step {
	v, c := s.Snapshot, s.Content
	var said snapshots.VolumeSnapshotContentStatus
	if c.Status != nil {
		said = *c.Status
	}
	var was snapshots.VolumeSnapshotStatus
	if v.Status != nil {
		was = *v.Status
	}
	if ready(v) && (said.ReadyToUse == nil || !*said.ReadyToUse) && was.Error == nil {
		return Step{} // once ready, it stays ready
	}
	step := updateStatus(v, func(st *snapshots.VolumeSnapshotStatus) {
		st.BoundVolumeSnapshotContentName = &c.Name
		st.ReadyToUse = new(said.ReadyToUse != nil && *said.ReadyToUse)
		st.Error = said.Error.DeepCopy()
		if said.CreationTime != nil {
			st.CreationTime = new(metav1.NewTime(time.Unix(0, *said.CreationTime).Truncate(time.Second)))
		}
		if said.RestoreSize != nil {
			st.RestoreSize = resource.NewQuantity(*said.RestoreSize, resource.BinarySI)
		}
		if said.VolumeGroupSnapshotHandle != nil && s.Group != nil {
			st.VolumeGroupSnapshotName = &s.Group.Name
		}
	})
	is := step.Snapshot.Status
	switch {
	case v.Status != nil && apiequality.Semantic.DeepEqual(*is, was):
		return Step{}
	case *is.ReadyToUse && !ready(v):
		return step.because(v, corev1.EventTypeNormal, "SnapshotReady",
			fmt.Sprintf("Snapshot %s/%s is ready to use.", v.Namespace, v.Name))
	case is.CreationTime != nil && was.CreationTime == nil:
		return step.because(v, corev1.EventTypeNormal, "SnapshotCreated",
			fmt.Sprintf("Snapshot %s/%s was successfully created by the CSI driver.", v.Namespace, v.Name))
	}
	return step
}

// failed reports in the snapshot's status, and once in an event, why the snapshot cannot be taken. Missing objects
// are watched, so there is no timed retry.
func (s State) failed(now time.Time, reason, message string) Step {
	v := s.Snapshot
	if st := v.Status; st != nil && st.Error != nil && st.Error.Message != nil && *st.Error.Message == message &&
		!ready(v) {
		return Step{}.because(v, corev1.EventTypeWarning, reason, message)
	}
	at := metav1.NewTime(now)
	return updateStatus(v, func(st *snapshots.VolumeSnapshotStatus) {
		st.Error, st.ReadyToUse = &snapshots.VolumeSnapshotError{Time: &at, Message: &message}, new(false)
	}).because(v, corev1.EventTypeWarning, reason, message)
}

// delete deletes the content according to the deletion policy, and then releases the snapshot. It waits while a
// claim is being restored from it.
func (s State) delete() Step {
	v, c := s.Snapshot, s.Content
	if c != nil && (!names(c, v) || c.Spec.VolumeSnapshotRef.UID == "") {
		c = nil
	}
	if !slices.ContainsFunc(v.Finalizers, func(f string) bool {
		return f == snapshots.SourceFinalizer || f == snapshots.BoundFinalizer || f == snapshots.InGroupFinalizer
	}) {
		return Step{}
	}
	switch g := s.Group; {
	case g != nil && g.DeletionTimestamp == nil:
		return Step{}.because(v, corev1.EventTypeWarning, "SnapshotDeletePending",
			fmt.Sprintf("deletion of the individual volume snapshot %s/%s is not allowed as it belongs to group snapshot "+
				"%s/%s. "+
				"Deleting the group snapshot will trigger the deletion of all the individual volume snapshots that are part of "+
				"the group.", v.Namespace, v.Name, g.Namespace, g.Name))
	case g != nil:
		return Step{} // until the group is gone
	case c != nil && len(s.Restoring) > 0:
		return Step{}.because(v, corev1.EventTypeNormal, "SnapshotDeletePending",
			fmt.Sprintf("Snapshot is being used to restore the claim %s", s.Restoring[0]))
	case c != nil && !metav1.HasAnnotation(c.ObjectMeta, snapshots.DeletingAnnotation):
		return updateContent(c, func(c *snapshots.VolumeSnapshotContent) { annotate(c, snapshots.DeletingAnnotation, "yes") })
	case c != nil && c.Spec.DeletionPolicy == snapshots.Delete && c.DeletionTimestamp == nil:
		return Step{Op: DeleteContent, Content: c}
	}
	going := c != nil && c.Spec.DeletionPolicy == snapshots.Delete
	step := updateSnapshot(v, func(v *snapshots.VolumeSnapshot) {
		controllerutil.RemoveFinalizer(v, snapshots.SourceFinalizer)
		controllerutil.RemoveFinalizer(v, snapshots.InGroupFinalizer)
		if !going {
			controllerutil.RemoveFinalizer(v, snapshots.BoundFinalizer)
		}
	})
	if going &&
		(len(step.Snapshot.Finalizers) == len(v.Finalizers) ||
			!controllerutil.ContainsFinalizer(v, snapshots.BoundFinalizer)) {
		return Step{} // until the content is gone, even if the snapshot was never bound
	}
	return step
}

// PlanContent adds the finalizer to a bound content, because the driver may have its snapshot.
func PlanContent(c *snapshots.VolumeSnapshotContent) Step {
	if c.DeletionTimestamp != nil || c.Spec.VolumeSnapshotRef.UID == "" ||
		controllerutil.ContainsFinalizer(c, snapshots.ContentFinalizer) {
		return Step{}
	}
	return updateContent(c, func(c *snapshots.VolumeSnapshotContent) {
		controllerutil.AddFinalizer(c, snapshots.ContentFinalizer)
	})
}

// PlanClaim removes a claim's finalizer when none of its snapshots is being taken. all are all snapshots of the claim.
func PlanClaim(c *corev1.PersistentVolumeClaim, all []*snapshots.VolumeSnapshot) Step {
	if !controllerutil.ContainsFinalizer(c, snapshots.ClaimFinalizer) ||
		slices.ContainsFunc(all, func(v *snapshots.VolumeSnapshot) bool { return v.DeletionTimestamp == nil && !ready(v) }) {
		return Step{}
	}
	return updateClaim(c, func(c *corev1.PersistentVolumeClaim) {
		controllerutil.RemoveFinalizer(c, snapshots.ClaimFinalizer)
	})
}
