package task

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// settle is the least time between two writes of a task's progress. It is shorter than a creation over REST waits for a
// node.
const settle = 200 * time.Millisecond

// pace spaces the writes of progress, so that a task that ends within moments is written when its node was chosen and
// when it has ended, and not at each step between. It never holds back the end of an attempt. What is older than settle
// is forgotten, which costs at most a write.
type pace struct {
	mu    sync.Mutex
	at    map[types.NamespacedName]progress
	sweep int // at this many, old ones are dropped
}

// leastSwept is how many may be held before old ones are looked for.
const leastSwept = 1024

// progress is when the progress of a task was written, or, before that, when there was something to write.
type progress struct {
	at      time.Time
	written bool
}

// hold returns how long the write of the next status of a task should wait; 0: it is due, and hold takes it as done.
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
	// More than settle is left if the clock was set back.
	if left := last.at.Add(settle).Sub(now); left > 0 && left <= settle && !chosen {
		return left
	}
	p.at[name] = progress{at: now, written: true}
	return 0
}

// drop drops old entries, such as entries of tasks whose end another process wrote. It takes constant time for each
// task, on average.
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

// forget drops what is held for a task that is gone.
func (p *pace) forget(name types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.at, name)
}
