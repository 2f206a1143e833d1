package csi

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/volume"
)

func askedEvery(seconds int64) func(*storagev1.CSIDriverSpec) {
	return func(s *storagev1.CSIDriverSpec) { s.NodeAllocatableUpdatePeriodSeconds = &seconds }
}

// count returns the driver's limit in the CSINode.
func (b *bench) count() int32 {
	var c storagev1.CSINode
	require.NoError(b, b.client.Get(b.Context(), types.NamespacedName{Name: "n"}, &c))
	require.Len(b, c.Spec.Drivers, 1)
	return *c.Spec.Drivers[0].Allocatable.Count
}

// A driver is asked again as often as its CSIDriver says, and never without a period.
func TestDriversAreAskedAgain(t *testing.T) {
	b := start(t, nil)
	var all int64 // set before each answer, in the driver
	b.driver.Call = func(_ context.Context, method string, _ any) error {
		if method == "NodeGetInfo" {
			all++
			b.driver.MaxVolumes = 5 + all
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.csi.renewAll(ctx) }()
	defer func() { cancel(); <-done }()

	b.csi.described(described(nil))
	name, _ := b.csi.nextRenewal()
	require.Empty(t, name)
	b.csi.described(described(askedEvery(3600)))
	name, at := b.csi.nextRenewal()
	require.Equal(t, "d.example.com", name)
	require.WithinDuration(t, time.Now().Add(time.Hour), at, time.Minute)
	b.csi.described(described(askedEvery(3600)))
	_, again := b.csi.nextRenewal()
	require.Equal(t, at, again, "a change of something else does not put it off")
	other := described(askedEvery(1))
	other.Name = "not.here"
	b.csi.described(other)
	_, again = b.csi.nextRenewal()
	require.Equal(t, at, again)
	require.EqualValues(t, 5, b.count())

	b.csi.described(described(askedEvery(math.MaxInt64))) // effectively never
	_, at = b.csi.nextRenewal()
	require.Greater(t, time.Until(at), 24*time.Hour)
	b.csi.described(described(askedEvery(1)))
	require.Eventually(t, func() bool { return b.count() >= 7 }, patience, time.Millisecond, "twice")
	b.csi.undescribed(described(askedEvery(1)))
	name, _ = b.csi.nextRenewal()
	require.Empty(t, name)
}

// A pod whose volume cannot be attached fails after a while. Then the CSINode has the driver's current limit.
func TestAttachLimit(t *testing.T) {
	exhausted, internal, pv := int32(codes.ResourceExhausted), int32(codes.Internal), "pv"
	for name, tt := range map[string]struct {
		every  int64
		code   *int32
		waited time.Duration
		ends   bool
	}{
		"waits":                  {60, &exhausted, time.Minute, false},
		"has waited":             {60, &exhausted, time.Hour, true},
		"for another reason":     {60, &internal, time.Hour, false},
		"for an unknown reason":  {60, nil, time.Hour, false},
		"driver that never says": {0, &exhausted, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			driver := described(func(s *storagev1.CSIDriverSpec) {
				s.AttachRequired = nil
				if tt.every > 0 {
					askedEvery(tt.every)(s)
				}
			})
			b := start(t,
				append(bound(), driver, &storagev1.VolumeAttachment{
					ObjectMeta: metav1.ObjectMeta{Name: AttachmentName("handle", "d.example.com", "n")},
					Spec: storagev1.VolumeAttachmentSpec{
						Attacher: "d.example.com",
						NodeName: "n",
						Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
					},
					Status: storagev1.VolumeAttachmentStatus{
						AttachError: &storagev1.VolumeError{Message: "full", ErrorCode: tt.code},
					},
				}), staging)
			b.driver.Call = func(_ context.Context, method string, _ any) error {
				if method == "NodeGetInfo" {
					b.driver.MaxVolumes = 2
				}
				return nil
			}
			p := withClaim("one")
			p.Status.StartTime = &metav1.Time{Time: time.Now().Add(-tt.waited)}
			_, err := b.setup(p)
			require.ErrorContains(t, err, `AttachVolume.Attach failed for volume "pv" : full`)
			if tt.ends {
				require.ErrorIs(t, err, volume.ErrAttachLimit)
				require.EqualValues(t, 2, b.count())
			} else {
				require.NotErrorIs(t, err, volume.ErrAttachLimit)
				require.EqualValues(t, 5, b.count())
			}
			require.NoError(t, b.teardown(p))
			b.clean()
		})
	}
}

// The limit of an entry changes in place, so that the scheduler always sees the driver.
func TestCountChangesInPlace(t *testing.T) {
	b := start(t, nil)
	watch, err := b.client.Watch(t.Context(), &storagev1.CSINodeList{})
	require.NoError(t, err)
	defer watch.Stop()
	five, six := int32(5), int32(6)
	entry := storagev1.CSINodeDriver{
		Name:         "d.example.com",
		NodeID:       "node-of-d.example.com",
		TopologyKeys: []string{"example.com/rack"},
		Allocatable:  &storagev1.VolumeNodeResources{Count: &six},
	}
	require.NoError(t, b.csi.changeCSINode(t.Context(), entry.Name, &entry))
	changed := (<-watch.ResultChan()).Object.(*storagev1.CSINode)
	require.Equal(t, []storagev1.CSINodeDriver{entry}, changed.Spec.Drivers)
	require.EqualValues(t, six, b.count())
	entry.Allocatable.Count = &five
	require.NoError(t, b.csi.changeCSINode(t.Context(), entry.Name, &entry))
	require.EqualValues(t, five, b.count())
}
