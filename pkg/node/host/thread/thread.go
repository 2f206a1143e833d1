// Package thread runs functions that change the namespaces of their thread.
//
// Its invariant: no other goroutine ever runs on such a thread.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on an OS thread of its own and waits for it. The thread ends with f, so f may change its namespaces.
// Goroutines that f starts run on other threads.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot exit, and /proc/self shows its namespaces: block it and use another.
			done <- Run(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // without UnlockOSThread the runtime ends the thread
	}()
	return <-done
}
