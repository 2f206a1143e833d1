package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// wait waits until the container is in the state.
func wait(t testing.TB, r *Runtime, id string, state runtime.State) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	changes := r.Changes(ctx)
	for {
		c, err := r.Get(ctx, id)
		require.NoError(t, err)
		if c.State == state {
			return
		}
		_, ok := <-changes
		require.True(t, ok, "%s: %+v", id, c)
	}
}

// BenchmarkPod creates a pod of one container, with or without a user namespace, waits until it ends and removes it.
func BenchmarkPod(b *testing.B) {
	b.Run("host-users", func(b *testing.B) { benchPod(b, false) })
	b.Run("own-users", func(b *testing.B) { benchPod(b, true) })
}

func benchPod(b *testing.B, own bool) {
	r := start(b)
	users := ownUsers(b, r)
	ctx := context.Background()
	var create, run, exit, remove time.Duration
	n := 0
	before := cpu(b)
	for b.Loop() {
		n++
		s := spec(r.config, fmt.Sprintf("bench-%d", n), "a", "true")
		s.Seccomp = os.Getenv("RT_SECCOMP")
		if own {
			b.StopTimer()
			pid, ids := users(b)
			withUsers(pid, ids, &s)
			b.StartTimer()
		}
		began := time.Now()
		lap := func(d *time.Duration) { *d += time.Since(began); began = time.Now() }
		require.NoError(b, r.Create(ctx, s))
		lap(&create)
		require.NoError(b, r.Start(ctx, s.ID))
		lap(&run)
		wait(b, r, s.ID, runtime.Exited)
		lap(&exit)
		require.NoError(b, r.Remove(ctx, s.ID))
		require.NoError(b, r.RemovePod(ctx, s.PodUID, s.CgroupParent))
		lap(&remove)
	}
	for name, d := range map[string]time.Duration{"create": create, "start": run, "exit": exit, "remove": remove} {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(n), name+"-ms")
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/float64(n), "cpu-ms")
}

// BenchmarkReap creates pods of one container that exits at once, and removes them, 16 at a time. It measures the
// runtime alone, for comparison with tasks. The containers have their own namespaces, like tasks, without link,
// address or route; or the host's network.
func BenchmarkReap(b *testing.B) {
	for name, network := range map[string]string{"own-network": "", "host-network": "host"} {
		b.Run(name, func(b *testing.B) { reap(b, network) })
	}
}

func reap(b *testing.B, network string) {
	r := start(b)
	ctx := context.Background()
	next := make(chan int)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for n := range next {
				s := spec(r.config, fmt.Sprintf("reap-%d", n), "a", "true")
				s.NetNS = network
				if err := errors.Join(r.Create(ctx, s), r.Start(ctx, s.ID)); err != nil {
					b.Error(err)
					continue
				}
				wait(b, r, s.ID, runtime.Exited)
				if err := errors.Join(r.Remove(ctx, s.ID), r.RemovePod(ctx, s.PodUID, s.CgroupParent)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	before := cpu(b)
	b.ResetTimer()
	for n := range b.N {
		next <- n
	}
	close(next)
	all.Wait()
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
}

// cpu returns the CPU time of this process and its ended children, which include shims and their containers.
func cpu(t testing.TB) time.Duration {
	var total int64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		require.NoError(t, unix.Getrusage(who, &u))
		total += u.Utime.Nano() + u.Stime.Nano()
	}
	return time.Duration(total)
}

func Benchmark30(b *testing.B) {
	r := start(b)
	ctx := context.Background()
	var running, removed time.Duration
	n := 0
	for b.Loop() {
		n++
		began := time.Now()
		each := func(f func(s runtime.Spec)) {
			var all sync.WaitGroup
			for i := range 30 {
				all.Go(func() { f(spec(r.config, fmt.Sprintf("bench-%d-%d", n, i), "a", "sleep", "1000")) })
			}
			all.Wait()
		}
		each(func(s runtime.Spec) {
			if err := r.Create(ctx, s); err != nil {
				b.Error(err)
			}
			if err := r.Start(ctx, s.ID); err != nil {
				b.Error(err)
			}
		})
		running += time.Since(began)
		began = time.Now()
		each(func(s runtime.Spec) {
			if err := r.Remove(ctx, s.ID); err != nil {
				b.Error(err)
			}
			if err := r.RemovePod(ctx, s.PodUID, s.CgroupParent); err != nil {
				b.Error(err)
			}
		})
		removed += time.Since(began)
	}
	b.ReportMetric(float64(running.Milliseconds())/float64(n), "running-ms")
	b.ReportMetric(float64(removed.Milliseconds())/float64(n), "removed-ms")
}

func BenchmarkExec(b *testing.B) {
	r := start(b)
	ctx := context.Background()
	s := spec(r.config, "bench", "a", "sleep", "1000")
	require.NoError(b, r.Create(ctx, s))
	require.NoError(b, r.Start(ctx, s.ID))
	var out bytes.Buffer
	for b.Loop() {
		_, err := r.Exec(ctx, s.ID, runtime.Exec{Command: []string{"true"}, Streams: runtime.Streams{Out: &out}})
		require.NoError(b, err)
	}
}
