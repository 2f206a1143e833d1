package v1

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
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
		return &VolumeSnapshotContent{Spec: VolumeSnapshotContentSpec{VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s"}, DeletionPolicy: Retain, Driver: "d.example.com",
			Source: VolumeSnapshotContentSource{SnapshotHandle: new("snap")}}}
	}
	require.Empty(t, ValidateContent(good()))
	for want, change := range map[string]func(*VolumeSnapshotContent){
		"exactly one of":        func(c *VolumeSnapshotContent) { c.Spec.Source.VolumeHandle = new("disk") },
		"source.snapshotHandle": func(c *VolumeSnapshotContent) { c.Spec.Source.SnapshotHandle = new(strings.Repeat("x", maxHandle+1)) },
		"both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set": func(c *VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.Namespace = "" },
		"spec.deletionPolicy":   func(c *VolumeSnapshotContent) { c.Spec.DeletionPolicy = "Keep" },
		"spec.driver":           func(c *VolumeSnapshotContent) { c.Spec.Driver = "a b" },
		"spec.sourceVolumeMode": func(c *VolumeSnapshotContent) { c.Spec.SourceVolumeMode = new(corev1.PersistentVolumeMode("Tape")) },
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
	require.Len(t, ValidateClass(&VolumeSnapshotClass{Driver: "d", DeletionPolicy: Delete, Parameters: map[string]string{"k": strings.Repeat("x", maxParameters)}}), 1)
}
