package cache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Removing watchers between notify and the end of its goroutine loses no other watcher's wakeup.
func TestBellsRingForAll(t *testing.T) {
	const n = wakeBatch + 4
	for gone := range n {
		b := &notifier{running: true} // the goroutine is about to run
		var all []*Watcher
		for range n {
			w := &Watcher{wakeup: make(chan struct{}, 1)}
			all = append(all, w)
			b.add(w)
		}
		b.notify()
		for i := range gone {
			b.remove(all[i])
		}
		b.notifyRest()
		for i, w := range all[gone:] {
			require.Len(t, w.wakeup, 1, "watcher %d of %d after %d went", gone+i, n, gone)
		}
		require.False(t, b.running)
	}
}
