package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkSetup does not measure the release of namespaces, which the kernel does in the background.
func BenchmarkSetup(b *testing.B) {
	n := newNet(b)
	ctx := context.Background()
	var uids []string
	for i := 0; b.Loop(); i++ {
		uids = append(uids, fmt.Sprint("pod-", i))
		if _, err := n.Setup(ctx, Pod{UID: uids[i], Hostname: "x"}); err != nil {
			b.Fatal(err)
		}
	}
	for _, uid := range uids {
		require.NoError(b, n.Teardown(ctx, uid))
	}
}

// BenchmarkSetupTeardown runs pods one and sixteen at a time, and reports this process's CPU time.
func BenchmarkSetupTeardown(b *testing.B) {
	for _, at := range []int{1, 16} {
		b.Run(fmt.Sprint(at), func(b *testing.B) {
			n := newNet(b)
			var next atomic.Int64
			var wg sync.WaitGroup
			before := cpuTime(b)
			for range at {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						uid := fmt.Sprint("pod-", i)
						_, err := n.Setup(b.Context(), Pod{UID: uid, Hostname: "x"})
						if err := errors.Join(err, n.Teardown(b.Context(), uid)); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
