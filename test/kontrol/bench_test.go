package kontrol

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocated returns the bytes and objects that this process has allocated. These vary least with load.
func allocated() (bytes, objects float64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.TotalAlloc), float64(m.Mallocs)
}

func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkBacklog reports the cost of 1,000 Resources that waited for a suspended cluster until all are in sync:
// processor time, allocations and writes of hub and target together (their etcd, API and Kontrol share this
// process), and the live heap at the end. Load slows it down, but changes these numbers little. HEAP names a file
// for a heap profile.
func BenchmarkBacklog(b *testing.B) {
	const n = 1000
	for b.Loop() {
		h, g := newHub(b), newTarget(b, "c")
		h.add(g)
		suspend := func(yes bool) {
			require.NoError(b,
				h.Patch(b.Context(), &kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
					ctrl.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, yes))))
		}
		suspend(true)
		revision := func() float64 {
			var list kontrol.ClusterList
			require.NoError(b, h.List(b.Context(), &list))
			r, err := strconv.ParseFloat(list.ResourceVersion, 64)
			require.NoError(b, err)
			return r
		}
		before, written, used := liveHeap(), revision(), processorTime(b)
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("many-%05d", i))
		}
		require.NoError(b, parallel(n, func(i int) error {
			return h.Create(b.Context(), resource(names[i], "c", names[i], "https://"+names[i]+".example.com/"))
		}))
		h.until("waiting", names, state(kontrol.StateOutOfSync))
		b.ReportMetric((processorTime(b)-used).Seconds()*1000/n, "ms-to-create")
		b.ReportMetric((revision()-written)/n, "writes-to-create")
		written, used = revision(), processorTime(b)
		began := time.Now()
		bytes, objects := allocated()
		suspend(false)
		h.until("in sync", names, state(kontrol.StateSynced))
		b.ReportMetric(n/time.Since(began).Seconds(), "synced/s")
		b.ReportMetric((processorTime(b)-used).Seconds()*1000/n, "ms-to-apply")
		b.ReportMetric((revision()-written)/n, "writes-to-apply")
		bytesNow, objectsNow := allocated()
		b.ReportMetric((bytesNow-bytes)/n, "B-to-apply")
		b.ReportMetric((objectsNow-objects)/n, "allocs-to-apply")
		b.ReportMetric((liveHeap()-before)/n, "B/Resource")
		if file := os.Getenv("HEAP"); file != "" {
			f, err := os.Create(file)
			require.NoError(b, err)
			require.NoError(b, pprof.Lookup("heap").WriteTo(f, 0))
			require.NoError(b, f.Close())
		}
	}
}
