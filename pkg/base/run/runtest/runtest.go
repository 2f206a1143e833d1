// Package runtest helps tests to run components and to read their logs.
package runtest

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

// Start runs components in order and returns once the last one is ready. stop stops them in reverse order, at the
// latest when the test ends; further calls do nothing. The test fails if a component fails.
func Start(t testing.TB, components ...run.Component) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run.All(ctx, run.Observer{}, components...) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	select {
	case <-components[len(components)-1].Ready():
	case err := <-ended:
		ended <- nil
		t.Fatalf("components did not start: %v", err)
	}
	return stop
}
