package server

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkForgetStart reports the memory of a process after its start, after a garbage collection, and after
// forgetStart.
func BenchmarkForgetStart(b *testing.B) {
	startPlane(b)
	for b.Loop() {
		started := pss("/proc", os.Getpid())
		debug.FreeOSMemory()
		collected := pss("/proc", os.Getpid())
		require.NoError(b, forgetStart())
		b.ReportMetric(float64(started)/(1<<20), "MiB-started")
		b.ReportMetric(float64(collected)/(1<<20), "MiB-collected")
		b.ReportMetric(float64(pss("/proc", os.Getpid()))/(1<<20), "MiB-forgotten")
	}
}
