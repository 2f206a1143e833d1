package pod

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// TestFullnessIsSaidOnce checks that a volume that cannot be read for a while keeps its state.
func TestFullnessIsSaidOnce(t *testing.T) {
	var f fullness
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}
	said := func(available uint64, err error) int {
		return len(f.changes([]reading{
			{VolumeSpace: VolumeSpace{Pod: p, Volume: "v", Space: volume.Space{Capacity: 1000, Available: available}}, err: err},
		}))
	}
	away := errors.New("away")
	require.Zero(t, said(500, nil))
	require.Equal(t, 1, said(0, nil))
	require.Zero(t, said(0, away))
	require.Zero(t, said(0, nil))
	require.Zero(t, said(0, away))
	require.Equal(t, 1, said(500, nil))
	require.Equal(t, 1, said(0, nil))
	require.Empty(t, f.changes(nil))
	require.Equal(t, 1, said(0, nil), "of a volume that comes back")
}
