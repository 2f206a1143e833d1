package engine

import "sync"

const writers = 16

// Parallel calls f for 0 to n-1, at most 16 at a time, and returns the error with the lowest index.
func Parallel(n int, f func(int) error) error {
	if n == 1 {
		return f(0)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, writers)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// SlowStart calls f for 0 to n-1 in parallel batches of 1, 2, 4 ... until a batch fails, so that few requests fail if
// quota or admission rejects the objects.
func SlowStart(n int, f func(int) error) error {
	for done, batch := 0, 1; done < n; done, batch = done+batch, 2*batch {
		batch = min(batch, n-done)
		if err := Parallel(batch, func(i int) error { return f(done + i) }); err != nil {
			return err
		}
	}
	return nil
}
