package v1

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestValidate(t *testing.T) {
	good := func() *VolumeSnapshot {
		return &VolumeSnapshot{Spec: VolumeSnapshotSpec{Source: VolumeSnapshotSource{PersistentVolumeClaimName: new("c")}}}
	}
	require.Empty(t, Validate(good()))
	for want, change := range map[string]func(*VolumeSnapshot){
		"exactly one of":                  func(s *VolumeSnapshot) { s.Spec.Source.PersistentVolumeClaimName = nil },
		"must be set":                     func(s *VolumeSnapshot) { s.Spec.Source.VolumeSnapshotContentName = new("d") },
		"must not be the empty string":    func(s *VolumeSnapshot) { s.Spec.VolumeSnapshotClassName = new("") },
		"spec.volumeSnapshotClassName":    func(s *VolumeSnapshot) { s.Spec.VolumeSnapshotClassName = new("A/B") },
		"source.persistentVolumeClaimNam": func(s *VolumeSnapshot) { s.Spec.Source.PersistentVolumeClaimName = new("") },
	} {
		s := good()
		change(s)
		require.ErrorContains(t, Validate(s).ToAggregate(), want)
	}
	moved := good()
	moved.Spec.Source.PersistentVolumeClaimName = new("d")
	require.ErrorContains(t, ValidateUpdate(moved, good()).ToAggregate(), "immutable")
	classed := good()
	classed.Spec.VolumeSnapshotClassName = new("class")
	require.Empty(t, ValidateUpdate(classed, good()))
}

func TestValidateContent(t *testing.T) {
	good := func() *VolumeSnapshotContent {
		return &VolumeSnapshotContent{
			Spec: VolumeSnapshotContentSpec{
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s"}, DeletionPolicy: Retain,
				Driver: "d.example.com",
				Source: VolumeSnapshotContentSource{SnapshotHandle: new("snap")},
			},
		}
	}
	require.Empty(t, ValidateContent(good()))
	for want, change := range map[string]func(*VolumeSnapshotContent){
		"exactly one of": func(c *VolumeSnapshotContent) { c.Spec.Source.VolumeHandle = new("disk") },
		"source.snapshotHandle": func(c *VolumeSnapshotContent) {
			c.Spec.Source.SnapshotHandle = new(strings.Repeat("x", maxHandle+1))
		},
		"both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set": func(c *VolumeSnapshotContent) {
			c.Spec.VolumeSnapshotRef.Namespace = ""
		},
		"spec.deletionPolicy": func(c *VolumeSnapshotContent) { c.Spec.DeletionPolicy = "Keep" },
		"spec.driver":         func(c *VolumeSnapshotContent) { c.Spec.Driver = "a b" },
		"spec.sourceVolumeMode": func(c *VolumeSnapshotContent) {
			c.Spec.SourceVolumeMode = new(corev1.PersistentVolumeMode("Tape"))
		},
	} {
		c := good()
		change(c)
		require.ErrorContains(t, ValidateContent(c).ToAggregate(), want)
	}
	for name, change := range map[string]func(*VolumeSnapshotContent){
		"source": func(c *VolumeSnapshotContent) { c.Spec.Source.SnapshotHandle = new("other") },
		"mode":   func(c *VolumeSnapshotContent) { c.Spec.SourceVolumeMode = nil },
	} {
		old := good()
		old.Spec.SourceVolumeMode = new(corev1.PersistentVolumeBlock)
		c := old.DeepCopy()
		change(c)
		require.ErrorContains(t, ValidateContentUpdate(c, old).ToAggregate(), "immutable", name)
	}
	bound := good()
	bound.Spec.VolumeSnapshotRef.UID, bound.Spec.DeletionPolicy = "uid", Delete
	require.Empty(t, ValidateContentUpdate(bound, good()))
	bound.Status = &VolumeSnapshotContentStatus{RestoreSize: new(int64(-1))}
	require.NotEmpty(t, ValidateContentStatus(bound, good()))
}

func TestValidateClass(t *testing.T) {
	require.Empty(t, ValidateClass(&VolumeSnapshotClass{Driver: "coracle.dev/local", DeletionPolicy: Delete}))
	require.Len(t, ValidateClass(&VolumeSnapshotClass{}), 2)
	require.Len(t,
		ValidateClass(&VolumeSnapshotClass{
			Driver:         "d",
			DeletionPolicy: Delete,
			Parameters:     map[string]string{"k": strings.Repeat("x", maxParameters)},
		}), 1)
}

func TestValidateGroup(t *testing.T) {
	good := func() *VolumeGroupSnapshot {
		return &VolumeGroupSnapshot{
			Spec: VolumeGroupSnapshotSpec{
				Source: VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
			},
		}
	}
	require.Empty(t, ValidateGroup(good()))
	for want, change := range map[string]func(*VolumeGroupSnapshot){
		"exactly one of selector": func(g *VolumeGroupSnapshot) { g.Spec.Source.Selector = nil },
		"and volumeGroupSnapshotContentNam": func(g *VolumeGroupSnapshot) {
			g.Spec.Source.VolumeGroupSnapshotContentName = new("d")
		},
		"must not be the empty string": func(g *VolumeGroupSnapshot) { g.Spec.VolumeGroupSnapshotClassName = new("") },
		"not a valid selector operator": func(g *VolumeGroupSnapshot) {
			g.Spec.Source.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
		},
	} {
		g := good()
		change(g)
		require.ErrorContains(t, ValidateGroup(g).ToAggregate(), want)
	}
	moved := good()
	moved.Spec.Source.Selector.MatchLabels["a"] = "c"
	require.ErrorContains(t, ValidateGroupUpdate(moved, good()).ToAggregate(), "spec.source.selector: Invalid value")
	classed := good()
	classed.Spec.VolumeGroupSnapshotClassName = new("class")
	require.Empty(t, ValidateGroupUpdate(classed, good()))
	bound := good()
	bound.Status = &VolumeGroupSnapshotStatus{BoundVolumeGroupSnapshotContentName: new("c")}
	require.Empty(t, ValidateGroupStatus(bound, good()))
	other := bound.DeepCopy()
	other.Status.BoundVolumeGroupSnapshotContentName = new("d")
	require.NotEmpty(t, ValidateGroupStatus(other, bound))
}

func TestValidateGroupContent(t *testing.T) {
	good := func() *VolumeGroupSnapshotContent {
		return &VolumeGroupSnapshotContent{
			Spec: VolumeGroupSnapshotContentSpec{
				VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "g"}, DeletionPolicy: Retain,
				Driver: "d.example.com",
				Source: VolumeGroupSnapshotContentSource{
					GroupSnapshotHandles: &GroupSnapshotHandles{
						VolumeGroupSnapshotHandle: "group", VolumeSnapshotHandles: []string{"snap-1", "snap-2"},
					},
				},
			},
		}
	}
	require.Empty(t, ValidateGroupContent(good()))
	for want, change := range map[string]func(*VolumeGroupSnapshotContent){
		"exactly one of": func(c *VolumeGroupSnapshotContent) { c.Spec.Source.VolumeHandles = []string{"disk"} },
		"Duplicate value": func(c *VolumeGroupSnapshotContent) {
			c.Spec.Source.GroupSnapshotHandles.VolumeSnapshotHandles[1] = "snap-1"
		},
		"volumeSnapshotHandles: Required": func(c *VolumeGroupSnapshotContent) {
			c.Spec.Source.GroupSnapshotHandles.VolumeSnapshotHandles = nil
		},
		"Too many": func(c *VolumeGroupSnapshotContent) {
			c.Spec.Source.GroupSnapshotHandles.VolumeSnapshotHandles = make([]string, MaxGroup+1)
		},
		"volumeSnapshotHandles[0]: Too long": func(c *VolumeGroupSnapshotContent) {
			c.Spec.Source.GroupSnapshotHandles.VolumeSnapshotHandles[0] = strings.Repeat("x", maxHandle+1)
		},
		"both volumeGroupSnapshotRef.name": func(c *VolumeGroupSnapshotContent) {
			c.Spec.VolumeGroupSnapshotRef.Namespace = ""
		},
		"spec.deletionPolicy": func(c *VolumeGroupSnapshotContent) { c.Spec.DeletionPolicy = "Keep" },
		"spec.driver":         func(c *VolumeGroupSnapshotContent) { c.Spec.Driver = "" },
	} {
		c := good()
		change(c)
		require.ErrorContains(t, ValidateGroupContent(c).ToAggregate(), want)
	}
	old := good()
	old.Spec.VolumeGroupSnapshotRef.UID, old.Spec.VolumeGroupSnapshotClassName = "uid", new("class")
	require.Empty(t, ValidateGroupContentUpdate(old, good()), "it is bound")
	for field, change := range map[string]func(*VolumeGroupSnapshotContent){
		"spec.source": func(c *VolumeGroupSnapshotContent) {
			c.Spec.Source.GroupSnapshotHandles.VolumeGroupSnapshotHandle = "other"
		},
		"spec.driver": func(c *VolumeGroupSnapshotContent) { c.Spec.Driver = "e.example.com" },
		"spec.volumeGroupSnapshotClassName": func(c *VolumeGroupSnapshotContent) {
			c.Spec.VolumeGroupSnapshotClassName = nil
		},
		"spec.volumeGroupSnapshotRef.name": func(c *VolumeGroupSnapshotContent) {
			c.Spec.VolumeGroupSnapshotRef.Name = "h"
		},
		"spec.volumeGroupSnapshotRef.namespace": func(c *VolumeGroupSnapshotContent) {
			c.Spec.VolumeGroupSnapshotRef.Namespace = "other"
		},
		"spec.volumeGroupSnapshotRef.uid: Invali": func(c *VolumeGroupSnapshotContent) {
			c.Spec.VolumeGroupSnapshotRef.UID = ""
		},
	} {
		c := old.DeepCopy()
		change(c)
		require.ErrorContains(t, ValidateGroupContentUpdate(c, old).ToAggregate(), field)
	}
	old.Status = &VolumeGroupSnapshotContentStatus{
		VolumeGroupSnapshotHandle: new("group"),
		VolumeSnapshotInfoList:    []VolumeSnapshotInfo{{VolumeHandle: "disk", SnapshotHandle: "snap"}},
	}
	require.Empty(t, ValidateGroupContentStatus(old, good()))
	cleared := old.DeepCopy()
	cleared.Status.VolumeGroupSnapshotHandle = nil
	require.Empty(t, ValidateGroupContentStatus(cleared, old), "csi-snapshotter does so when the driver has deleted it")
	for want, change := range map[string]func(*VolumeGroupSnapshotContentStatus){
		"volumeGroupSnapshotHandle: Invalid": func(s *VolumeGroupSnapshotContentStatus) {
			s.VolumeGroupSnapshotHandle = new("other")
		},
		"restoreSize": func(s *VolumeGroupSnapshotContentStatus) {
			s.VolumeSnapshotInfoList[0].RestoreSize = new(int64(-1))
		},
		"volumeSnapshotInfoList[0]: Require": func(s *VolumeGroupSnapshotContentStatus) {
			s.VolumeSnapshotInfoList[0].SnapshotHandle = ""
		},
		"Too many": func(s *VolumeGroupSnapshotContentStatus) {
			s.VolumeSnapshotInfoList = make([]VolumeSnapshotInfo, MaxGroup+1)
		},
	} {
		c := old.DeepCopy()
		change(c.Status)
		require.ErrorContains(t, ValidateGroupContentStatus(c, old).ToAggregate(), want)
	}
}

func TestValidateGroupClass(t *testing.T) {
	good := func() *VolumeGroupSnapshotClass {
		return &VolumeGroupSnapshotClass{Driver: "d", DeletionPolicy: Delete}
	}
	require.Empty(t, ValidateGroupClassUpdate(good(), good()))
	require.Len(t, ValidateGroupClass(&VolumeGroupSnapshotClass{}), 2)
	for _, change := range []func(*VolumeGroupSnapshotClass){
		func(c *VolumeGroupSnapshotClass) { c.Driver = "e" },
		func(c *VolumeGroupSnapshotClass) { c.DeletionPolicy = Retain },
		func(c *VolumeGroupSnapshotClass) { c.Parameters = map[string]string{"a": "b"} },
	} {
		c := good()
		change(c)
		require.ErrorContains(t, ValidateGroupClassUpdate(c, good()).ToAggregate(), "immutable")
	}
}
