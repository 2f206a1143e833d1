package task

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// settle is the minimum time between two writes of a task's progress. It is shorter than a create over REST waits for
// a node.
const settle = 200 * time.Millisecond

// pace spaces the writes of progress, so that a task that ends at once is written when its node is chosen and when it
// ends, but not at each step between. It never delays the end of an attempt. It forgets entries older than settle,
// which costs at most one write.
type pace struct {
	mu    sync.Mutex
	at    map[types.NamespacedName]progress
	sweep int // the number of entries at which old ones are dropped
}

// leastSwept is the smallest number of entries at which old ones are dropped.
const leastSwept = 1024

// progress is the time of the last write of a task's progress or, before the first write, of the first change.
type progress struct {
	at      time.Time
	written bool
}

// hold returns how long the write of a task's next status must wait. 0 means that it is due, and counts it as done.
func (p *pace) hold(name types.NamespacedName, was, next *tasks.TaskStatus, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next.Phase.Ended() {
		delete(p.at, name)
		return 0
	}
	if next.EndedAttempts != was.EndedAttempts {
		p.at[name] = progress{at: now, written: true}
		return 0
	}
	p.drop(now)
	last, known := p.at[name]
	if !known {
		last = progress{at: now}
		p.at[name] = last
	}
	chosen := next.Phase != tasks.TaskPending && !last.written
	// If more than settle is left, the clock was set back.
	if left := last.at.Add(settle).Sub(now); left > 0 && left <= settle && !chosen {
		return left
	}
	p.at[name] = progress{at: now, written: true}
	return 0
}

// drop drops old entries, such as entries of tasks whose end another process wrote. Its amortized cost per task is
// constant.
func (p *pace) drop(now time.Time) {
	if len(p.at) < max(p.sweep, leastSwept) {
		return
	}
	maps.DeleteFunc(p.at, func(_ types.NamespacedName, last progress) bool {
		age := now.Sub(last.at)
		return age >= settle || age < 0
	})
	p.sweep = 2 * len(p.at)
}

func (p *pace) forget(name types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.at, name)
}
