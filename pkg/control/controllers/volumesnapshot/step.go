package volumesnapshot

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// Op is the one write that a plan requests. The object is planned again after it.
type Op string

const (
	Nothing              Op = ""
	UpdateSnapshot       Op = "update snapshot"
	UpdateSnapshotStatus Op = "update snapshot status"
	CreateContent        Op = "create content"
	UpdateContent        Op = "update content"
	DeleteContent        Op = "delete content"
	UpdateClaim          Op = "update claim"

	UpdateGroup        Op = "update group"
	UpdateGroupStatus  Op = "update group status"
	CreateGroupContent Op = "create group content"
	UpdateGroupContent Op = "update group content"
	DeleteGroupContent Op = "delete group content"
	// WriteMembers requests one write for each of several snapshots of a group, in any order: CreateContent, or
	// one of the operations below.
	WriteMembers        Op = "write members"
	CreateSnapshot      Op = "create snapshot"
	DeleteSnapshot      Op = "delete snapshot"
	UpdateContentStatus Op = "update content status"
)

// Step is a write, with an event that explains it or explains why there is none.
type Step struct {
	Op       Op
	Snapshot *snapshots.VolumeSnapshot
	Content  *snapshots.VolumeSnapshotContent
	Claim    *corev1.PersistentVolumeClaim
	Event    *engine.Notice

	Group        *snapshots.VolumeGroupSnapshot
	GroupContent *snapshots.VolumeGroupSnapshotContent
	Members      []Step
}

func (s Step) because(about client.Object, kind, reason, message string) Step {
	s.Event = &engine.Notice{About: about, Type: kind, Reason: reason, Message: message}
	return s
}

func updateSnapshot(was *snapshots.VolumeSnapshot, change func(*snapshots.VolumeSnapshot)) Step {
	return Step{Op: UpdateSnapshot, Snapshot: engine.Changed(was, change)}
}

func updateStatus(was *snapshots.VolumeSnapshot, change func(*snapshots.VolumeSnapshotStatus)) Step {
	next := was.DeepCopy()
	if next.Status == nil {
		next.Status = &snapshots.VolumeSnapshotStatus{}
	}
	change(next.Status)
	return Step{Op: UpdateSnapshotStatus, Snapshot: next}
}

func updateContent(was *snapshots.VolumeSnapshotContent, change func(*snapshots.VolumeSnapshotContent)) Step {
	return Step{Op: UpdateContent, Content: engine.Changed(was, change)}
}

func updateClaim(was *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) Step {
	return Step{Op: UpdateClaim, Claim: engine.Changed(was, change)}
}

func updateGroup(was *snapshots.VolumeGroupSnapshot, change func(*snapshots.VolumeGroupSnapshot)) Step {
	return Step{Op: UpdateGroup, Group: engine.Changed(was, change)}
}

func updateGroupStatus(was *snapshots.VolumeGroupSnapshot, change func(*snapshots.VolumeGroupSnapshotStatus)) Step {
	next := was.DeepCopy()
	if next.Status == nil {
		next.Status = &snapshots.VolumeGroupSnapshotStatus{}
	}
	change(next.Status)
	return Step{Op: UpdateGroupStatus, Group: next}
}

func updateGroupContent(was *snapshots.VolumeGroupSnapshotContent,
	change func(*snapshots.VolumeGroupSnapshotContent)) Step {
	return Step{Op: UpdateGroupContent, GroupContent: engine.Changed(was, change)}
}

func annotate(o *snapshots.VolumeSnapshotContent, key, value string) {
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, key, value)
}
