package csi

import (
	"context"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestExpansion(t *testing.T) {
	b := start(t, append(bound(), described(nil)), staging, spec.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p := withClaim("one")
	m, err := b.setup(p)
	require.NoError(t, err)
	require.False(t, m.Refresh.IsZero(), "nodes may not watch volumes")
	var pv corev1.PersistentVolume
	require.NoError(t, b.client.Get(t.Context(), types.NamespacedName{Name: "pv"}, &pv))
	pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
	require.NoError(t, b.client.Update(t.Context(), &pv))
	_, err = b.setup(p)
	require.NoError(t, err)
	r := b.driver.Last("NodeExpandVolume").(*spec.NodeExpandVolumeRequest)
	require.EqualValues(t, 2<<30, r.CapacityRange.RequiredBytes)
	require.NotEmpty(t, r.StagingTargetPath)
	var c corev1.PersistentVolumeClaim
	require.NoError(t, b.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "c"}, &c))
	require.Equal(t, "2Gi", c.Status.Capacity.Storage().String())
	require.NoError(t, b.teardown(p))
	b.clean()
}

// TestExpansionByAResizer: the node waits for the resizer, passes the secret, and does not retry infeasible
// expansions.
func TestExpansionByAResizer(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "expand"}, Data: map[string][]byte{"k": []byte("expand")},
	}
	b := start(t, append(bound(), described(nil), secret), staging, spec.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p := withClaim("one")
	var refusal error
	b.driver.Call = func(_ context.Context, method string, _ any) error {
		if method == "NodeExpandVolume" {
			return refusal
		}
		return nil
	}
	set := func(size string, s corev1.ClaimResourceStatus) {
		t.Helper()
		c := b.claim()
		c.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: s}
		require.NoError(t, b.client.Status().Update(t.Context(), c))
		_, err := b.setup(p)
		require.NoError(t, err)
	}
	asked := func() (n int) {
		for _, call := range b.driver.Calls() {
			if call == "NodeExpandVolume" {
				n++
			}
		}
		return n
	}
	var pv corev1.PersistentVolume
	require.NoError(t, b.client.Get(t.Context(), types.NamespacedName{Name: "pv"}, &pv))
	pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("3Gi")
	pv.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "default", Name: "expand"}
	require.NoError(t, b.client.Update(t.Context(), &pv))
	set("3Gi", corev1.PersistentVolumeClaimControllerResizeInProgress)
	require.Zero(t, asked(), "the resizer has not done its part")

	refusal = status.Error(codes.Unavailable, "not now")
	set("3Gi", corev1.PersistentVolumeClaimNodeResizePending)
	require.Equal(t, 1, asked())
	c := b.claim()
	require.Equal(t, corev1.PersistentVolumeClaimNodeResizeInProgress,
		c.Status.AllocatedResourceStatuses[corev1.ResourceStorage], "it is tried again")
	require.Equal(t, corev1.PersistentVolumeClaimNodeResizeError, c.Status.Conditions[0].Type)
	require.Contains(t, c.Status.Conditions[0].Message, "not now")
	said := b.said()
	require.Len(t, said, 1)
	require.Contains(t, said[0],
		`Warning VolumeResizeFailed Pod one: NodeExpandVolume.NodeExpandVolume failed for volume "v" : `)
	require.Contains(t, said[0], "not now")

	refusal = status.Error(codes.OutOfRange, "too large")
	for range 2 {
		_, err := b.setup(p)
		require.NoError(t, err)
	}
	require.Equal(t, 2, asked(), "it is impossible")
	c = b.claim()
	require.Equal(t, corev1.PersistentVolumeClaimNodeResizeInfeasible,
		c.Status.AllocatedResourceStatuses[corev1.ResourceStorage])
	require.Len(t, c.Status.Conditions, 1)
	require.Contains(t, c.Status.Conditions[0].Message, "too large")

	refusal = nil
	set("2Gi", corev1.PersistentVolumeClaimNodeResizePending)
	r := b.driver.Last("NodeExpandVolume").(*spec.NodeExpandVolumeRequest)
	require.EqualValues(t, 2<<30, r.CapacityRange.RequiredBytes)
	require.Equal(t, map[string]string{"k": "expand"}, r.Secrets)
	c = b.claim()
	require.Equal(t, "2Gi", c.Status.Capacity.Storage().String())
	require.Empty(t, c.Status.Conditions)
	require.Empty(t, c.Status.AllocatedResourceStatuses)
	_, err := b.setup(p)
	require.NoError(t, err)
	require.Equal(t, 3, asked(), "it has its size")
	said = b.said()
	require.Len(t, said, 3)
	require.Contains(t, said[0], "VolumeResizeFailed")
	require.Equal(t,
		[]string{`Normal FileSystemResizeSuccessful Pod one: MountVolume.NodeExpandVolume succeeded for volume "v" n`,
			`Normal FileSystemResizeSuccessful PersistentVolumeClaim c: MountVolume.NodeExpandVolume succeeded for volume "v" n`},
		said[1:])
	require.NoError(t, b.teardown(p))
	b.clean()
}

// TestVolumesForReadingAreNotExpanded: read-only volumes are not expanded, and an event says so.
func TestVolumesForReadingAreNotExpanded(t *testing.T) {
	b := start(t, append(bound(), described(nil)), staging, spec.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p := withClaim("one")
	p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	var pv corev1.PersistentVolume
	require.NoError(t, b.client.Get(t.Context(), types.NamespacedName{Name: "pv"}, &pv))
	pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
	require.NoError(t, b.client.Update(t.Context(), &pv))
	_, err := b.setup(p)
	require.NoError(t, err)
	require.NotContains(t, b.driver.Calls(), "NodeExpandVolume")
	require.Equal(t,
		[]string{
			`Warning FileSystemResizeFailed Pod one: MountVolume.NodeExpandVolume failed for volume "v" : requested read-only file system`,
			`Warning FileSystemResizeFailed PersistentVolumeClaim c: MountVolume.NodeExpandVolume failed for volume "v" : requested read-only file system`,
		}, b.said())
	require.NoError(t, b.teardown(p))
	b.clean()
}

// claim returns the claim of bound.
func (b *bench) claim() *corev1.PersistentVolumeClaim {
	b.Helper()
	var c corev1.PersistentVolumeClaim
	require.NoError(b, b.client.Get(b.Context(), types.NamespacedName{Namespace: "default", Name: "c"}, &c))
	return &c
}
