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
	for range 3 {
		collect(first)
		collect(second)
	}
	stop()
	collect(second) // finalizers run one after the other: the first's last call has ended
	select {
	case <-first:
	default:
	}
	collect(second)
	collect(second)
	require.Empty(t, first)
}

func counted() (called chan struct{}, stop func()) {
	called = make(chan struct{}, 1)
	return called, AfterCollections(func() {
		select {
		case called <- struct{}{}:
		default:
		}
	})
}

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
