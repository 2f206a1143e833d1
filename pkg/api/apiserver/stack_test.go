package apiserver

import (
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// The compiler does not optimize away the array in growStack.
func TestGrowStackGrows(t *testing.T) {
	stacks := func() uint64 {
		sample := []runtimemetrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
		runtimemetrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // garbage collection shrinks stacks
	runtime.GC()                                     // ends any running collection
	const goroutines = 2000
	before := stacks()
	var grown, done sync.WaitGroup
	end := make(chan struct{})
	grown.Add(goroutines)
	for range goroutines {
		done.Go(func() {
			growStack()
			grown.Done()
			<-end
		})
	}
	grown.Wait()
	after := stacks()
	close(end)
	done.Wait()
	require.Greater(t, after, before+goroutines*stackBytes)
}
