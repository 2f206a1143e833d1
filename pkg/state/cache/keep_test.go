package cache

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// largeEntries returns pods of about 2 KB.
func largeEntries(n int, k *keeper) []*Entry {
	all := make([]*Entry, n)
	for i := range all {
		p := pod("a", fmt.Sprint("p", i), func(p *corev1.Pod) {
			p.Annotations = map[string]string{"text": strings.Repeat("x", 2000)}
		})
		all[i] = &Entry{Object: p, Key: pods.Key(p.Namespace, p.Name), row: pods, keeper: k}
	}
	return all
}

func (e *Entry) keeps(which encoding) bool { return e.kept[which].Load() != nil }

// TestKeeper: the least recently read encodings are dropped first, and made again on demand.
func TestKeeper(t *testing.T) {
	k := &keeper{limit: 10 << 10}
	all := largeEntries(20, k)
	first := string(all[0].JSON())
	for _, e := range all[1:] {
		_ = all[0].JSON()
		_ = e.JSON()
		require.LessOrEqual(t, k.size(), k.limit)
	}
	require.True(t, all[0].keeps(encodingJSON), "it is read often")
	require.False(t, all[1].keeps(encodingJSON))
	require.True(t, all[19].keeps(encodingJSON))
	require.Equal(t, first, string(all[0].JSON()))
	again := all[1].JSON()
	require.Contains(t, string(again), `"name":"p1"`)
	for _, e := range all {
		_ = e.Proto()
	}
	require.Contains(t, string(again), `"name":"p1"`, "what a reader has stays as it is")
	require.LessOrEqual(t, k.size(), k.limit)
	require.LessOrEqual(t, len(k.queue)-k.first, 10)
}

// TestKeeperKeepsNoEntries: the keeper does not keep a replaced entry alive.
func TestKeeperKeepsNoEntries(t *testing.T) {
	k := &keeper{limit: 1 << 30}
	gone := make(chan struct{})
	func() {
		all := largeEntries(1, k)
		_ = all[0].JSON()
		runtime.AddCleanup(all[0], func(struct{}) { close(gone) }, struct{}{})
	}()
	require.Positive(t, k.size())
	runtime.GC()
	<-gone
	k.limit = 10 << 10
	other := largeEntries(4, k)
	for _, e := range other {
		_ = e.JSON()
	}
	for _, e := range other {
		require.True(t, e.keeps(encodingJSON), "what is gone makes room first")
	}
}

// TestKeeperConcurrently: readers get correct encodings while others are dropped.
func TestKeeperConcurrently(t *testing.T) {
	k := &keeper{limit: 20 << 10}
	all := largeEntries(50, k)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				for i, e := range all {
					name := fmt.Sprintf(`"name":"p%d"`, i)
					if _, rest := e.JSONItem(nil); !strings.Contains(string(rest), name) ||
						!strings.Contains(string(e.JSON()), name) || !strings.Contains(string(e.Proto()), fmt.Sprint("p", i)) {
						t.Errorf("%s is not there", name)
					}
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, k.size(), k.limit)
}

// TestLongListsDropNothing: a list longer than the limit evicts no encodings, and keeps as many of its own as fit.
func TestLongListsDropNothing(t *testing.T) {
	k := &keeper{limit: 20 << 10}
	hot := largeEntries(4, k)
	for _, e := range hot {
		_ = e.JSON()
	}
	used := k.size()
	scratch, done := ScratchFor(LongList + 1)
	defer done()
	all := largeEntries(50, k)
	for _, which := range []encoding{encodingJSON, encodingProto} {
		for range 2 {
			kept := 0
			for i, e := range all {
				if which == encodingJSON {
					begin, rest := e.JSONItem(scratch)
					require.JSONEq(t, string(e.marshal(nil)), begin+string(rest))
				} else {
					size := e.ProtoSize()
					got := e.ProtoItem(scratch)
					require.Len(t, got, size)
					require.Contains(t, string(got), fmt.Sprint("p", i))
				}
				if e.keeps(which) {
					kept++
				}
			}
			require.LessOrEqual(t, k.size(), k.limit)
			require.Equal(t, which == encodingJSON, kept > 0, "protobuf had no room left")
		}
	}
	require.Greater(t, k.size(), used)
	for _, e := range hot {
		require.True(t, e.keeps(encodingJSON))
	}
	short, _ := ScratchFor(LongList)
	require.Nil(t, short)
}

// TestUnreadEncodingsAreForgotten: each garbage collection drops half of the unread encodings.
func TestUnreadEncodingsAreForgotten(t *testing.T) {
	k := &keeper{limit: 1 << 30}
	all := largeEntries(1000, k)
	for _, e := range all {
		_ = e.JSON()
	}
	collected := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { k.forget(ctx, collected) })
	for _, left := range []int{500, 250, 125, 63} {
		_ = all[0].JSON()
		collected <- struct{}{}
		require.Eventually(t, func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			return len(k.queue)-k.first <= left+1
		}, time.Minute, time.Millisecond)
		require.True(t, all[0].keeps(encodingJSON), "it is read each time")
	}
	for k.size() > 0 {
		collected <- struct{}{}
	}
	require.False(t, all[0].keeps(encodingJSON))
	_ = all[1].JSON()
	require.Positive(t, k.size())
	cancel()
	running.Wait()
}

// BenchmarkKept reports the memory of the encodings of 50,000 pods of 2 KB, each listed as JSON and as protobuf.
func BenchmarkKept(b *testing.B) {
	for _, limit := range []int64{1 << 40, keptEncodings} {
		b.Run(fmt.Sprint(limit>>20, "MiB"), func(b *testing.B) {
			for b.Loop() {
				k := &keeper{limit: limit}
				all := largeEntries(50000, k)
				heap := func() uint64 {
					runtime.GC()
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					return m.HeapAlloc
				}
				before := heap()
				for _, e := range all {
					_, _ = e.JSONItem(nil)
					_ = e.Proto()
				}
				b.ReportMetric(float64(heap()-before)/float64(len(all)), "B/entry")
				runtime.KeepAlive(all)
			}
		})
	}
}
