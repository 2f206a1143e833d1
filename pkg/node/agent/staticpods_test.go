package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// TestPodRangeIsAppliedOnce: the registration and the event of its write report the same range at the same time.
func TestPodRangeIsAppliedOnce(t *testing.T) {
	dir := t.TempDir()
	var calls atomic.Int32
	var log runtest.Buffer
	a, err := New(Config{
		Environment: pod.Environment{
			Client:   newCluster(t.Context()),
			Runtime:  fakeruntime.New(fakeruntime.Config{}),
			Network:  &fakeNetwork{sandboxes: map[string]network.Sandbox{}},
			NodeName: "node",
			DataDir:  dir,
			RunDir:   filepath.Join(dir, "run"),
			LogDir:   filepath.Join(dir, "log"),
			Recorder: &eventList{},
			Logger:   slog.New(slog.NewTextHandler(&log, nil)),
		},
		NodeIP:      netip.MustParseAddr("192.0.2.1"),
		ClusterCIDR: netip.MustParsePrefix("10.42.0.0/16"),
		OnPodCIDR: func(context.Context, netip.Prefix) error {
			calls.Add(1)
			for range 1000 {
				runtime.Gosched()
			}
			return nil
		},
	})
	require.NoError(t, err)
	n := &corev1.Node{}
	n.Name, n.UID, n.Spec.PodCIDR = "node", "uid", "10.42.3.0/24"
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { a.nodeChanged(t.Context(), n) })
	}
	wg.Wait()
	require.EqualValues(t, 1, calls.Load())
	require.NotContains(t, log.String(), "could not store")
}

// TestStoredPodRange checks that static pods use the stored range, and that pods of the API wait for the Node's.
func TestStoredPodRange(t *testing.T) {
	dir, last := t.TempDir(), netip.MustParsePrefix("10.42.3.0/24")
	start := func() (*Agent, *[]netip.Prefix) {
		var got []netip.Prefix
		a, err := New(Config{
			Environment: pod.Environment{
				Client:   newCluster(t.Context()),
				Runtime:  fakeruntime.New(fakeruntime.Config{}),
				Network:  &fakeNetwork{sandboxes: map[string]network.Sandbox{}},
				NodeName: "node",
				DataDir:  dir,
				RunDir:   filepath.Join(dir, "run"),
				LogDir:   filepath.Join(dir, "log"),
				Recorder: &eventList{},
			},
			NodeIP:      netip.MustParseAddr("192.0.2.1"),
			ClusterCIDR: netip.MustParsePrefix("10.42.0.0/16"),
			OnPodCIDR:   func(_ context.Context, p netip.Prefix) error { got = append(got, p); return nil },
		})
		require.NoError(t, err)
		a.restoreRange(t.Context())
		return a, &got
	}
	node := func(cidr string) *corev1.Node {
		n := &corev1.Node{}
		n.Name, n.UID, n.Spec.PodCIDR = "node", "uid", cidr
		return n
	}
	a, got := start()
	require.Empty(t, *got, "there was none")
	require.False(t, a.admits(), "before the node is registered")
	a.nodeChanged(t.Context(), node(""))
	require.True(t, a.admits(), "pods wait for addresses by themselves")
	a.applyRange(t.Context(), node(last.String()))

	a, got = start()
	require.Equal(t, []netip.Prefix{last}, *got)
	a.nodeChanged(t.Context(), node(""))
	require.False(t, a.admits(), "the Node is a new one, and may get another range")
	a.applyRange(t.Context(), node("10.42.4.0/24"))
	require.True(t, a.admits())
	require.Equal(t, []netip.Prefix{last, netip.MustParsePrefix("10.42.4.0/24")}, *got)

	for _, damaged := range []string{"", "10.42", "10.0.0.0/8", "192.168.1.0/24", string(make([]byte, 1000))} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "pod-range"), []byte(damaged), 0o600))
		a, got = start()
		require.Empty(t, *got, damaged)
		require.False(t, a.kept)
	}
}
