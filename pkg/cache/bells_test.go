package cache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Watchers that go between a ring and the goroutine that ends it take nobody's wake-up with them.
func TestBellsRingForAll(t *testing.T) {
	const n = atOnce + 4
	for gone := range n {
		b := &bells{ringing: true} // the goroutine is on its way
		var all []*Watcher
		for range n {
			w := &Watcher{bell: make(chan struct{}, 1)}
			all = append(all, w)
			b.add(w)
		}
		b.ring()
		for i := range gone {
			b.remove(all[i])
		}
		b.others()
		for i, w := range all[gone:] {
			require.Len(t, w.bell, 1, "watcher %d of %d after %d went", gone+i, n, gone)
		}
		require.False(t, b.ringing)
	}
}
