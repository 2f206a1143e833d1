package volumesnapshot

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
)

// GroupState is the input of PlanGroup.
type GroupState struct {
	Group *snapshots.VolumeGroupSnapshot
	// Content is the content that the group is or will be bound to, nil if it does not exist.
	Content *snapshots.VolumeGroupSnapshotContent
	Classes []*snapshots.VolumeGroupSnapshotClass
	// Selected is the number of claims that the group's selector matches. Sources are these claims, unless there
	// are too many.
	Selected int
	Sources  []Source
	// Volumes are the volumes in the driver's group snapshot, by their handle.
	Volumes map[string]*corev1.PersistentVolume
	// Snapshots and Contents are the existing objects of the group's snapshots, by name.
	Snapshots map[string]*snapshots.VolumeSnapshot
	Contents  map[string]*snapshots.VolumeSnapshotContent
	// Restoring are the names of the claims that are being restored from the group's snapshots.
	Restoring []string
}

// Source is a claim and its volume, nil if it has none.
type Source struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// GroupContentName returns upstream's name of a dynamically provisioned group's content.
func GroupContentName(group types.UID) string { return "groupsnapcontent-" + string(group) }

func groupContentOf(g *snapshots.VolumeGroupSnapshot) string {
	if name := g.Spec.Source.VolumeGroupSnapshotContentName; name != nil {
		return *name
	}
	return GroupContentName(g.UID)
}

// groupOf returns the name and UID of the group that a snapshot belongs to. The UID is empty if only the status
// names it.
func groupOf(v *snapshots.VolumeSnapshot) (name string, uid types.UID) {
	for _, o := range v.OwnerReferences {
		if gv, err := schema.ParseGroupVersion(o.APIVersion); err == nil && o.Kind == "VolumeGroupSnapshot" &&
			gv.Group == snapshots.Groups.Group {
			return o.Name, o.UID
		}
	}
	if v.Status != nil && v.Status.VolumeGroupSnapshotName != nil {
		return *v.Status.VolumeGroupSnapshotName, ""
	}
	return "", ""
}

func inGroup(v *snapshots.VolumeSnapshot) bool {
	_, uid := groupOf(v)
	return uid != ""
}

func owned(v *snapshots.VolumeSnapshot, g *snapshots.VolumeGroupSnapshot) bool {
	_, uid := groupOf(v)
	return uid == g.UID
}

// join makes a group own a snapshot, and adds the finalizer for members of a group.
func join(v *snapshots.VolumeSnapshot, g *snapshots.VolumeGroupSnapshot) {
	v.OwnerReferences = append(v.OwnerReferences, metav1.OwnerReference{
		APIVersion: snapshots.Groups.String(),
		Kind:       "VolumeGroupSnapshot",
		Name:       g.Name,
		UID:        g.UID,
	})
	controllerutil.AddFinalizer(v, snapshots.InGroupFinalizer)
}

// PlanGroup returns the next step towards a group whose driver has taken a snapshot of each volume, with a
// VolumeSnapshot for each, as upstream's controller does. Its invariants: a group gets one content, whose name
// follows from the group. Each VolumeSnapshot is created before its content, so that the group owns whatever an
// interruption leaves. A group is ready only when all of its snapshots exist. A driver's group snapshot that may
// exist is deleted before the group's object.
func PlanGroup(s GroupState, now time.Time) Step {
	g := s.Group
	if g.DeletionTimestamp != nil {
		return s.delete()
	}
	if !controllerutil.ContainsFinalizer(g, snapshots.GroupBoundFinalizer) {
		return updateGroup(g, func(g *snapshots.VolumeGroupSnapshot) {
			controllerutil.AddFinalizer(g, snapshots.GroupBoundFinalizer)
		})
	}
	if s.Content == nil {
		if groupReady(g) || g.Spec.Source.VolumeGroupSnapshotContentName != nil {
			return s.failed(now, "GroupSnapshotContentMissing", "VolumeGroupSnapshotContent is missing")
		}
		return s.take(now)
	}
	if step := s.mismatch(now); step.Op != Nothing || step.Event != nil {
		return step
	}
	spec := &s.Content.Spec
	switch bound := spec.VolumeGroupSnapshotRef.UID != ""; {
	case groupReady(g) && !bound:
		return s.failed(now, "GroupSnapshotMisbound",
			"VolumeGroupSnapshotContent is not bound to the VolumeGroupSnapshot correctly")
	case !groupReady(g) &&
		(!bound || spec.VolumeGroupSnapshotClassName == nil && g.Spec.VolumeGroupSnapshotClassName != nil):
		return updateGroupContent(s.Content, func(c *snapshots.VolumeGroupSnapshotContent) {
			c.Spec.VolumeGroupSnapshotRef.UID = g.UID
			if c.Spec.VolumeGroupSnapshotClassName == nil {
				c.Spec.VolumeGroupSnapshotClassName = g.Spec.VolumeGroupSnapshotClassName
			}
		})
	}
	if !groupReady(g) {
		if step := s.members(now); step.Op != Nothing || step.Event != nil {
			return step
		}
	}
	return s.report()
}

func groupReady(g *snapshots.VolumeGroupSnapshot) bool {
	return g.Status != nil && g.Status.ReadyToUse != nil && *g.Status.ReadyToUse
}

// groupNames reports whether a content is bound to a group, or was pre-provisioned for it.
func groupNames(c *snapshots.VolumeGroupSnapshotContent, g *snapshots.VolumeGroupSnapshot) bool {
	ref := c.Spec.VolumeGroupSnapshotRef
	return ref.Namespace == g.Namespace && ref.Name == g.Name &&
		(ref.UID == g.UID || ref.UID == "" && c.Spec.Source.GroupSnapshotHandles != nil)
}

// mismatch returns a failed step if the content is not for this group, or has another class.
func (s GroupState) mismatch(now time.Time) Step {
	c, g := s.Content, s.Group
	existing := g.Spec.Source.VolumeGroupSnapshotContentName != nil
	switch {
	case existing && c.Spec.Source.GroupSnapshotHandles == nil:
		return s.failed(now, "GroupSnapshotContentMismatch",
			"VolumeGroupSnapshotContent is dynamically provisioned while expecting a pre-provisioned one")
	case !existing && c.Spec.Source.GroupSnapshotHandles != nil:
		return s.failed(now, "GroupSnapshotContentMismatch",
			"VolumeGroupSnapshotContent "+c.Name+" is pre-provisioned while expecting a dynamically provisioned one")
	case !groupNames(c, g):
		return s.failed(now, "GroupSnapshotContentMisbound",
			fmt.Sprintf("VolumeGroupSnapshotContent [%s] is bound to a different group snapshot", c.Name))
	}
	if !existing || groupReady(g) {
		return Step{} // the class no longer matters
	}
	wanted, has := g.Spec.VolumeGroupSnapshotClassName, c.Spec.VolumeGroupSnapshotClassName
	if wanted != nil && has != nil && *wanted != *has {
		return s.failed(now, "GroupSnapshotBindFailed",
			fmt.Sprintf("VolumeGroupSnapshotContent [%s] is of the class %q, and the group snapshot asks for %q", c.Name, *has,
				*wanted))
	}
	if has == nil {
		has = wanted
	}
	if class := s.class(has); class != nil && class.Driver != c.Spec.Driver {
		return s.failed(now, "GroupSnapshotBindFailed",
			fmt.Sprintf("the class %q is for the driver %q, and VolumeGroupSnapshotContent [%s] is of %q", class.Name,
				class.Driver, c.Name, c.Spec.Driver))
	}
	return Step{}
}

func (s GroupState) report() Step {
	g, c := s.Group, s.Content
	var said snapshots.VolumeGroupSnapshotContentStatus
	if c.Status != nil {
		said = *c.Status
	}
	var was snapshots.VolumeGroupSnapshotStatus
	if g.Status != nil {
		was = *g.Status
	}
	if groupReady(g) && (said.ReadyToUse == nil || !*said.ReadyToUse) && was.Error == nil {
		return Step{} // once ready, it stays ready
	}
	step := updateGroupStatus(g, func(st *snapshots.VolumeGroupSnapshotStatus) {
		st.BoundVolumeGroupSnapshotContentName = &c.Name
		st.ReadyToUse = new(said.ReadyToUse != nil && *said.ReadyToUse)
		st.Error = said.Error.DeepCopy()
		if said.CreationTime != nil {
			st.CreationTime = said.CreationTime.DeepCopy()
		}
	})
	is, name := step.Group.Status, g.Namespace+"/"+g.Name
	switch {
	case g.Status != nil && apiequality.Semantic.DeepEqual(*is, was):
		return Step{}
	case *is.ReadyToUse && !groupReady(g):
		return step.because(g, corev1.EventTypeNormal, "GroupSnapshotReady",
			fmt.Sprintf("GroupSnapshot %s is ready to use.", name))
	case is.CreationTime != nil && was.CreationTime == nil:
		return step.because(g, corev1.EventTypeNormal, "GroupSnapshotCreated",
			fmt.Sprintf("GroupSnapshot %s was successfully created by the CSI driver.", name))
	}
	return step
}

// failed reports in the group's status, and once in an event, why the group cannot be taken. Missing objects are
// watched, so there is no timed retry.
func (s GroupState) failed(now time.Time, reason, message string) Step {
	g := s.Group
	if st := g.Status; st != nil && st.Error != nil && st.Error.Message != nil && *st.Error.Message == message &&
		!groupReady(g) {
		return Step{}.because(g, corev1.EventTypeWarning, reason, message)
	}
	at := metav1.NewTime(now)
	return updateGroupStatus(g, func(st *snapshots.VolumeGroupSnapshotStatus) {
		st.Error, st.ReadyToUse = &snapshots.VolumeSnapshotError{Time: &at, Message: &message}, new(false)
	}).because(g, corev1.EventTypeWarning, reason, message)
}

// delete deletes the group's snapshots, then its content according to the deletion policy, and then releases the
// group. It waits while a claim is being restored from one of the snapshots.
func (s GroupState) delete() Step {
	g, c := s.Group, s.Content
	if c != nil && (!groupNames(c, g) || c.Spec.VolumeGroupSnapshotRef.UID == "") {
		c = nil
	}
	if !controllerutil.ContainsFinalizer(g, snapshots.GroupBoundFinalizer) {
		return Step{}
	}
	if len(s.Restoring) > 0 {
		return Step{}.because(g, corev1.EventTypeWarning, "SnapshotDeletePending",
			fmt.Sprintf("A snapshot of the group is being used to restore the claim %s", s.Restoring[0]))
	}
	var members []Step
	for _, v := range s.Snapshots {
		if v.DeletionTimestamp == nil {
			members = append(members, Step{Op: DeleteSnapshot, Snapshot: v})
		}
	}
	switch {
	case len(members) > 0:
		slices.SortFunc(members, func(a, b Step) int { return strings.Compare(a.Snapshot.Name, b.Snapshot.Name) })
		return Step{Op: WriteMembers, Group: g, Members: members}
	case c != nil && !metav1.HasAnnotation(c.ObjectMeta, snapshots.GroupDeletingAnnotation):
		return updateGroupContent(c, func(c *snapshots.VolumeGroupSnapshotContent) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshots.GroupDeletingAnnotation, "yes")
		})
	case c != nil && c.Spec.DeletionPolicy == snapshots.Delete && c.DeletionTimestamp == nil:
		return Step{Op: DeleteGroupContent, GroupContent: c}
	case c != nil && c.Spec.DeletionPolicy == snapshots.Delete:
		return Step{} // until the content is gone
	}
	return updateGroup(g, func(g *snapshots.VolumeGroupSnapshot) {
		controllerutil.RemoveFinalizer(g, snapshots.GroupBoundFinalizer)
	})
}

// PlanGroupContent adds the finalizer to a bound content, because the driver may have its group.
func PlanGroupContent(c *snapshots.VolumeGroupSnapshotContent) Step {
	if c.DeletionTimestamp != nil || c.Spec.VolumeGroupSnapshotRef.UID == "" ||
		controllerutil.ContainsFinalizer(c, snapshots.GroupContentFinalizer) {
		return Step{}
	}
	return updateGroupContent(c, func(c *snapshots.VolumeGroupSnapshotContent) {
		controllerutil.AddFinalizer(c, snapshots.GroupContentFinalizer)
	})
}
