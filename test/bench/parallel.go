package main

import (
	"errors"
	"sync"
	"sync/atomic"
)

// inParallel calls f for 0 to n-1 from several goroutines, with the goroutine's number. A goroutine ends at its
// first error.
func inParallel(workers, n int, f func(worker, i int) error) error {
	var next atomic.Int64
	errs := make([]error, workers)
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for i := next.Add(1); i <= int64(n) && errs[w] == nil; i = next.Add(1) {
				errs[w] = f(w, int(i-1))
			}
		})
	}
	working.Wait()
	return errors.Join(errs...)
}
