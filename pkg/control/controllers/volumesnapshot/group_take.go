package volumesnapshot

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// Prefixes of the names of a group's snapshots and of their contents. The rest of the name is the same.
const (
	memberPrefix        = "snapshot-"
	memberContentPrefix = "snapcontent-"
)

// MemberName returns upstream's name of a group's snapshot of a volume.
func MemberName(group types.UID, volumeHandle string) string {
	return fmt.Sprintf("%s%x", memberPrefix, sha256.Sum256([]byte(string(group)+volumeHandle)))
}

func memberContent(snapshot string) string {
	return memberContentPrefix + strings.TrimPrefix(snapshot, memberPrefix)
}

// take requests a group snapshot from the driver of the selected claims' volumes. It first sets the default class
// if the group names none, and then creates the content.
func (s GroupState) take(now time.Time) Step {
	g := s.Group
	handles, driver, why := s.sources()
	if g.Spec.VolumeGroupSnapshotClassName == nil {
		class := ""
		if why == "" {
			class, why = theDefault(s.Classes, func(c *snapshots.VolumeGroupSnapshotClass) bool {
				return c.Driver == driver && c.Annotations[snapshots.GroupDefaultAnnotation] == "true"
			}, driver, "group snapshot class")
		}
		if why != "" {
			return s.failed(now, "SetDefaultGroupSnapshotClassFailed",
				"Failed to set default group snapshot class with error "+why)
		}
		return updateGroup(g, func(g *snapshots.VolumeGroupSnapshot) { g.Spec.VolumeGroupSnapshotClassName = &class })
	}
	class := s.class(g.Spec.VolumeGroupSnapshotClassName)
	switch {
	case class == nil:
		why = fmt.Sprintf("volumegroupsnapshotclass.groupsnapshot.storage.k8s.io %q not found",
			*g.Spec.VolumeGroupSnapshotClassName)
	case why == "" && driver != class.Driver:
		why = fmt.Sprintf("the class %q is for the driver %q, and the claims' volumes are of %q", class.Name, class.Driver,
			driver)
	}
	content := &snapshots.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: GroupContentName(g.UID), Finalizers: []string{snapshots.GroupContentFinalizer}},
	}
	if why == "" {
		content.Spec = snapshots.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{
				APIVersion:      snapshots.Groups.String(),
				Kind:            "VolumeGroupSnapshot",
				Namespace:       g.Namespace,
				Name:            g.Name,
				UID:             g.UID,
				ResourceVersion: g.ResourceVersion,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeGroupSnapshotClassName: &class.Name,
			Source: snapshots.VolumeGroupSnapshotContentSource{VolumeHandles: handles},
		}
		why = groupSecret.write(&content.ObjectMeta, class.Name, class.Parameters, g)
	}
	if why == "" {
		// for example because the volume handles are too long for one object
		if errs := snapshots.ValidateGroupContent(content); len(errs) > 0 {
			why = errs.ToAggregate().Error()
		}
	}
	if why != "" {
		return s.failed(now, "GroupSnapshotContentCreationFailed", "failed to create group snapshot content with error "+why)
	}
	return Step{Op: CreateGroupContent, GroupContent: content}.because(g, corev1.EventTypeNormal, "CreatingGroupSnapshot",
		fmt.Sprintf("Waiting for a group snapshot %s/%s to be created by the CSI driver.", g.Namespace, g.Name))
}

// sources returns the volume handles of the selected claims and their driver, or why they cannot form a group.
func (s GroupState) sources() (handles []string, driver, why string) {
	switch selector := metav1.FormatLabelSelector(s.Group.Spec.Source.Selector); {
	case s.Selected == 0:
		return nil, "", fmt.Sprintf("no persistentvolumeclaim of the namespace matches the label selector %s", selector)
	case s.Selected > snapshots.MaxGroup:
		// omit the number, which may change often
		return nil, "", fmt.Sprintf("the label selector %s matches more than %d persistentvolumeclaims, the maximum of "+
			"a group", selector, snapshots.MaxGroup)
	}
	first := s.Sources[0].Claim.Name
	for _, source := range s.Sources {
		claim, volume := source.Claim, source.Volume
		if volume == nil || claim.Status.Phase != corev1.ClaimBound || volume.Spec.ClaimRef == nil ||
			volume.Spec.ClaimRef.UID != claim.UID {
			return nil, "", fmt.Sprintf("the PVC %s is not yet bound to a PV, will not attempt to take a group snapshot",
				claim.Name)
		}
		of, handle := driverOf(volume)
		switch {
		case claim.DeletionTimestamp != nil:
			return nil, "", fmt.Sprintf("cannot take a snapshot of persistentvolumeclaim %q, which is being deleted", claim.Name)
		case of == storage.Provisioner:
			return nil, "", fmt.Sprintf("the volume of persistentvolumeclaim %q is of %s: such volumes are copied one after "+
				"the other, so a group of their snapshots would not be of one point in time; "+
				"take a VolumeSnapshot of each claim while nothing writes to them", claim.Name, storage.Provisioner)
		case of == "":
			return nil, "", fmt.Sprintf("group snapshots need volumes of a CSI driver; volume %q of "+
				"persistentvolumeclaim %q has none", volume.Name, claim.Name)
		case driver != "" && of != driver:
			return nil, "", fmt.Sprintf("all volumes of a group need one driver: persistentvolumeclaim %q has %q, "+
				"%q has %q", first, driver, claim.Name, of)
		}
		driver, handles = of, append(handles, handle)
	}
	return handles, driver, ""
}

func (s GroupState) class(name *string) *snapshots.VolumeGroupSnapshotClass {
	i := slices.IndexFunc(s.Classes, func(c *snapshots.VolumeGroupSnapshotClass) bool {
		return name != nil && c.Name == *name
	})
	if i < 0 {
		return nil
	}
	return s.Classes[i]
}

// members returns the next write for each snapshot of the driver that lacks its VolumeSnapshot or content.
func (s GroupState) members(now time.Time) Step {
	g, c := s.Group, s.Content
	if c.Spec.Source.GroupSnapshotHandles != nil || c.Status == nil {
		return Step{} // the creator of the content creates them, or the driver has not answered yet
	}
	said := map[string]snapshots.VolumeSnapshotInfo{}
	for _, info := range c.Status.VolumeSnapshotInfoList {
		said[info.VolumeHandle] = info
		if !slices.Contains(c.Spec.Source.VolumeHandles, info.VolumeHandle) {
			return s.failed(now, "GroupSnapshotIncomplete",
				fmt.Sprintf("the driver took a snapshot of the volume %q, which is not in the group", info.VolumeHandle))
		}
	}
	var next []Step
	for _, volume := range c.Spec.Source.VolumeHandles {
		info, ok := said[volume]
		switch {
		case ok && c.Status.VolumeGroupSnapshotHandle != nil:
			step, why := s.member(volume, info)
			if why != "" {
				return s.failed(now, "SnapshotsOfGroupFailed", why)
			}
			if step.Op != Nothing {
				next = append(next, step)
			}
		case c.Status.ReadyToUse != nil && *c.Status.ReadyToUse:
			return s.failed(now, "GroupSnapshotIncomplete", fmt.Sprintf("the driver took no snapshot of the volume %q", volume))
		}
	}
	if len(next) == 0 {
		return Step{}
	}
	return Step{Op: WriteMembers, Group: g, Members: next}
}

// member returns the next write for the driver's snapshot of a volume: create the VolumeSnapshot, create its
// content, or copy the driver's information to the content's status.
func (s GroupState) member(volume string, info snapshots.VolumeSnapshotInfo) (step Step, why string) {
	g := s.Group
	name := MemberName(g.UID, volume)
	v, content := s.Snapshots[name], s.Contents[memberContent(name)]
	switch {
	case v == nil:
		v = &snapshots.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
		join(v, g)
		if of := s.Volumes[volume]; of != nil && of.Spec.ClaimRef != nil && of.Spec.ClaimRef.Namespace == g.Namespace {
			v.Spec.Source.PersistentVolumeClaimName = &of.Spec.ClaimRef.Name
		} else { // the volume is gone, but its snapshot exists
			v.Spec.Source.VolumeSnapshotContentName = new(memberContent(name))
		}
		return Step{Op: CreateSnapshot, Snapshot: v}, ""
	case !owned(v, g):
		return Step{}, fmt.Sprintf("there is a volumesnapshot %q that is not the group's", name)
	case content == nil:
		return Step{Op: CreateContent, Content: s.memberContent(v, volume, info)}, ""
	case content.Spec.VolumeSnapshotRef.UID != v.UID:
		return Step{}, fmt.Sprintf("there is a volumesnapshotcontent %q that is not of the group's snapshot %q", content.Name,
			name)
	case content.DeletionTimestamp == nil && !s.says(content.Status, info):
		content = engine.Changed(content, func(c *snapshots.VolumeSnapshotContent) {
			if c.Status == nil {
				c.Status = &snapshots.VolumeSnapshotContentStatus{}
			}
			if c.Status.SnapshotHandle == nil {
				c.Status.CreationTime, c.Status.RestoreSize, c.Status.ReadyToUse = info.CreationTime, info.RestoreSize,
					info.ReadyToUse
			}
			c.Status.SnapshotHandle, c.Status.VolumeGroupSnapshotHandle = &info.SnapshotHandle,
				s.Content.Status.VolumeGroupSnapshotHandle
		})
		return Step{Op: UpdateContentStatus, Content: content}, ""
	}
	return Step{}, ""
}

// says reports whether a content's status names the driver's snapshot and group. The csi-snapshotter of a driver
// that cannot list snapshots writes only the snapshot. It would later ask the driver to delete a snapshot that is
// deleted with its group.
func (s GroupState) says(st *snapshots.VolumeSnapshotContentStatus, info snapshots.VolumeSnapshotInfo) bool {
	return st != nil && ptr.Equal(st.SnapshotHandle, &info.SnapshotHandle) &&
		ptr.Equal(st.VolumeGroupSnapshotHandle, s.Content.Status.VolumeGroupSnapshotHandle)
}

func (s GroupState) memberContent(v *snapshots.VolumeSnapshot, volume string,
	info snapshots.VolumeSnapshotInfo) *snapshots.VolumeSnapshotContent {
	of := s.Content
	c := &snapshots.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: memberContent(v.Name), Finalizers: []string{snapshots.ContentFinalizer}},
		Spec: snapshots.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				APIVersion: snapshots.GroupVersion.String(),
				Kind:       "VolumeSnapshot",
				Namespace:  v.Namespace,
				Name:       v.Name,
				UID:        v.UID,
			},
			DeletionPolicy: of.Spec.DeletionPolicy, Driver: of.Spec.Driver,
			Source: snapshots.VolumeSnapshotContentSource{VolumeHandle: &volume},
		},
	}
	if v.Spec.Source.PersistentVolumeClaimName == nil {
		c.Spec.Source = snapshots.VolumeSnapshotContentSource{SnapshotHandle: &info.SnapshotHandle}
	}
	if pv := s.Volumes[volume]; pv != nil {
		c.Spec.SourceVolumeMode = pv.Spec.VolumeMode
	}
	annotate(c, snapshots.GroupHandleAnnotation, *of.Status.VolumeGroupSnapshotHandle)
	if secret, ok := of.Annotations[snapshots.GroupSecretNameAnnotation]; ok {
		annotate(c, snapshots.SecretNameAnnotation, secret)
		annotate(c, snapshots.SecretNamespaceAnnotation, of.Annotations[snapshots.GroupSecretNamespaceAnnotation])
	}
	return c
}
