package cache

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// waiters is a heap of the readers waiting for a revision, lowest first. The number of calls in flight bounds it.
type waiters struct {
	mu   sync.Mutex
	heap waitHeap
}

type waiter struct {
	rev   int64
	index int
	done  chan struct{}
}

// WaitFor blocks until readers see revision rev. It returns ctx's error, or ErrStopped.
func (c *Cache) WaitFor(ctx context.Context, rev int64) error {
	if c.rev.Load() >= rev {
		return nil
	}
	defer func(began time.Time) { c.metrics.wait.Observe(time.Since(began).Seconds()) }(time.Now())
	w := &waiter{rev: rev, done: make(chan struct{})}
	c.waiters.mu.Lock()
	if c.rev.Load() >= rev {
		c.waiters.mu.Unlock()
		return nil
	}
	heap.Push(&c.waiters.heap, w)
	c.waiters.mu.Unlock()
	var err error
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.stopped:
		err = ErrStopped
	}
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	if w.index >= 0 {
		heap.Remove(&c.waiters.heap, w.index)
	}
	return err
}

func (c *Cache) publish(rev int64) {
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	c.rev.Store(rev)
	for h := &c.waiters.heap; h.Len() > 0 && (*h)[0].rev <= rev; {
		close(heap.Pop(h).(*waiter).done)
	}
}

type waitHeap []*waiter

func (h waitHeap) Len() int           { return len(h) }
func (h waitHeap) Less(i, j int) bool { return h[i].rev < h[j].rev }
func (h waitHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }

func (h *waitHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *waitHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.index = -1
	return w
}
