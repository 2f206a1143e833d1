// Package memory is what this process does about its memory besides allocating: it notices garbage collections, and
// lets go of pages of mapped files.
package memory

import (
	"runtime"
	"sync/atomic"
)

// AfterCollections calls f after each garbage collection, until stop is called; a call may be under way then. It is
// called on the goroutine that runs all finalizers of the process, so it must not block.
func AfterCollections(f func()) (stop func()) {
	var stopped atomic.Bool
	var collected func(*cycle)
	collected = func(*cycle) {
		if stopped.Load() {
			return
		}
		runtime.SetFinalizer(&cycle{}, collected) // another one, that nothing refers to: a collection during f counts
		f()
	}
	runtime.SetFinalizer(&cycle{}, collected)
	return func() { stopped.Store(true) }
}

// cycle is an object that nothing refers to, whose finalizer runs after each collection.
type cycle struct{ _ [16]byte } // larger than what the allocator packs together with other objects
