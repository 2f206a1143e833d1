package eviction

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a fake machine with pods.
type node struct {
	mu       sync.Mutex
	signals  map[config.Signal]Reading
	reads    int
	wake     func()
	pods     []Pod
	done     []string
	walk     time.Duration // duration of measuring a pod
	freed    func()        // what Reclaim does
	stubborn bool          // evicted pods do not end
	events   []string
}

func (n *node) Read() map[config.Signal]Reading {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	return n.signals
}

func (n *node) Watch(ctx context.Context, _ int64, wake func()) {
	n.mu.Lock()
	n.wake = wake
	n.mu.Unlock()
	<-ctx.Done()
}

func (n *node) Active() []Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []Pod
	for _, p := range n.pods {
		p.Usage = nil
		all = append(all, p)
	}
	return all
}

func (n *node) Measure(ctx context.Context, p *corev1.Pod) (*Usage, error) {
	n.mu.Lock()
	walk := n.walk
	n.mu.Unlock()
	select {
	case <-time.After(walk):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done = append(n.done, "measure "+p.Name)
	for _, have := range n.pods {
		if have.UID == p.UID {
			return have.Usage, nil
		}
	}
	return &Usage{}, nil
}

func (n *node) Evict(uid types.UID, _ Eviction) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done = append(n.done, "evict "+string(uid))
	for i, p := range n.pods {
		if p.UID == uid {
			n.pods = append(n.pods[:i:i], n.pods[i+1:]...)
		}
	}
	end := make(chan struct{})
	if !n.stubborn {
		close(end)
	}
	return end
}

func (n *node) Reclaim(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done = append(n.done, "reclaim")
	if n.freed != nil {
		n.freed()
	}
	return nil
}

func (n *node) set(s config.Signal, r Reading) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.signals = signals(map[config.Signal]Reading{s: r})
}

func (n *node) took() []string {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	done := n.done
	n.done = nil
	return done
}

func (n *node) looks() int {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reads
}

func (n *node) call() {
	n.mu.Lock()
	wake := n.wake
	n.mu.Unlock()
	wake()
}

// run runs f with a Manager of n in fake time.
func run(t *testing.T, n *node, f func(t *testing.T, m *Manager)) {
	synctest.Test(t, func(t *testing.T) {
		if n.signals == nil {
			n.signals = signals(nil)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := New(Config{Policy: policy, Machine: n, Pods: n, Changed: func() {}, Logger: slog.New(slog.DiscardHandler),
			Event: func(_, reason, _ string) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.events = append(n.events, reason)
			}})
		m.Look()
		go m.Run(ctx)
		synctest.Wait()
		f(t, m)
	})
}

func TestIdleCostsNothing(t *testing.T) {
	n := &node{pods: []Pod{one("a", 1, 1)}}
	run(t, n, func(t *testing.T, m *Manager) {
		time.Sleep(time.Hour)
		require.Empty(t, n.took())
		require.InDelta(t, 360, n.looks(), 3)
		for _, c := range m.Conditions() {
			require.Equal(t, corev1.ConditionFalse, c.Status)
		}
	})
}

func TestOnlyLimitedPodsAreWalked(t *testing.T) {
	n := &node{pods: []Pod{one("a", 1, 1), one("b", 1, 1, limit("1Mi"))}, walk: time.Second}
	run(t, n, func(t *testing.T, _ *Manager) {
		time.Sleep(3 * time.Second)
		require.Equal(t, []string{"measure b"}, n.took())
		time.Sleep(190 * time.Second)
		require.Empty(t, n.took(), "a walk of a second is not repeated for %d", walkShare)
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"measure b"}, n.took())
		n.mu.Lock()
		n.walk, n.pods[1].Usage = 0, one("b", 1, 2<<20).Usage
		n.mu.Unlock()
		time.Sleep(200 * time.Second)
		require.Equal(t, []string{"measure b", "evict b"}, n.took())
	})
}

func TestAllPodsAreWalkedForAClient(t *testing.T) {
	n := &node{}
	run(t, n, func(t *testing.T, m *Manager) {
		began := time.Now()
		require.Empty(t, m.Usage(t.Context()))
		require.LessOrEqual(t, time.Since(began), leastPause, "there is nothing to walk")
	})
	n = &node{pods: []Pod{one("a", 1, 1), one("b", 1, 7)}, walk: 100 * time.Millisecond}
	run(t, n, func(t *testing.T, m *Manager) {
		all := m.Usage(t.Context())
		require.EqualValues(t, 7, all["b"].Disk().Bytes)
		require.Equal(t, []string{"measure a", "measure b"}, n.took())
		for range 55 {
			m.Usage(t.Context())
			time.Sleep(time.Second)
		}
		require.Equal(t, []string{"measure a", "measure b", "measure a", "measure b"}, n.took(),
			"a walk of 100 ms is repeated after 20 s")
		time.Sleep(askedTime)
		n.took()
		time.Sleep(time.Hour)
		require.Empty(t, n.took(), "nothing asks")
		n.mu.Lock()
		n.walk = time.Hour
		n.mu.Unlock()
		began := time.Now()
		require.Len(t, m.Usage(t.Context()), 2)
		require.Equal(t, firstWalk, time.Since(began))
	})
}

func TestALongWalkHoldsUpNothing(t *testing.T) {
	n := &node{pods: []Pod{one("a", 1, 1), one("b", 1, 1, limit("1Mi"))}, walk: time.Hour}
	n.freed = func() { n.signals = signals(nil) }
	run(t, n, func(t *testing.T, _ *Manager) {
		n.set(config.NodeFsAvailable, Reading{gi, 100 * gi})
		time.Sleep(period)
		require.Equal(t, []string{"reclaim"}, n.took())
	})
}

func TestImagesGoBeforePods(t *testing.T) {
	n := &node{pods: []Pod{one("a", 1, 1)}}
	n.freed = func() { n.signals = signals(nil) }
	run(t, n, func(t *testing.T, m *Manager) {
		n.set(config.NodeFsAvailable, Reading{gi, 100 * gi})
		time.Sleep(period)
		require.Equal(t, []string{"reclaim"}, n.took())
		kinds, _ := m.Pressures()
		require.Equal(t, []corev1.NodeConditionType{corev1.NodeDiskPressure}, kinds, "it is reported for a while")
		require.Equal(t, corev1.ConditionTrue, m.Conditions()[1].Status)
		time.Sleep(policy.Transition)
		require.Empty(t, n.took())
		kinds, _ = m.Pressures()
		require.Empty(t, kinds)
		require.Equal(t, []string{"NodeHasDiskPressure", "EvictionThresholdMet", "NodeHasNoDiskPressure"}, n.events)
	})
}

func TestPodsGoOneByOne(t *testing.T) {
	n := &node{pods: []Pod{one("a", 1, 10), one("b", 1, 30), one("c", 1, 20)}}
	n.freed = func() {
		if len(n.pods) == 1 {
			n.signals = signals(nil)
		}
	}
	run(t, n, func(t *testing.T, _ *Manager) {
		n.set(config.NodeFsAvailable, Reading{gi, 100 * gi})
		time.Sleep(period)
		require.Equal(t, []string{
			"reclaim", "measure a", "measure b", "measure c", "evict b",
			"reclaim", "measure a", "measure c", "evict c", "reclaim",
		}, n.took())
	})
}

func TestAPodThatDoesNotEndIsNotWaitedForLong(t *testing.T) {
	n := &node{pods: []Pod{one("a", 10, 0), one("b", 30, 0)}, stubborn: true}
	run(t, n, func(t *testing.T, _ *Manager) {
		n.set(config.MemoryAvailable, Reading{1, 4 * gi})
		time.Sleep(period)
		require.Equal(t, []string{"measure a", "measure b", "evict b"}, n.took())
		time.Sleep(endTime - 1)
		require.Empty(t, n.took())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"measure a", "evict a"}, n.took())
	})
}

func TestTheKernelsCall(t *testing.T) {
	n := &node{pods: []Pod{one("a", 10, 0)}}
	run(t, n, func(t *testing.T, _ *Manager) {
		time.Sleep(5 * time.Second)
		n.set(config.MemoryAvailable, Reading{1, 4 * gi})
		n.call()
		require.Equal(t, []string{"measure a", "evict a"}, n.took())
		n.set(config.MemoryAvailable, Reading{2 * gi, 4 * gi})
		before := n.looks()
		for range 50 { // within 5 s
			n.call()
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, n.looks()-before, 6)
	})
}
