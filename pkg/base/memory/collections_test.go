package memory

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAfterCollections(t *testing.T) {
	first, stop := counted()
	second, end := counted()
	defer end()
	for range 3 { // again and again
		collect(first)
		collect(second)
	}
	stop()
	collect(second) // what was under way when the first was stopped has ended: finalizers run one after the other
	select {
	case <-first:
	default:
	}
	collect(second)
	collect(second)
	require.Empty(t, first)
}

// counted returns a channel that has something if there was a collection.
func counted() (called chan struct{}, stop func()) {
	called = make(chan struct{}, 1)
	return called, AfterCollections(func() {
		select {
		case called <- struct{}{}:
		default:
		}
	})
}

// collect collects until that was noticed.
func collect(called chan struct{}) {
	for {
		runtime.GC()
		select {
		case <-called:
			return
		default:
		}
	}
}
