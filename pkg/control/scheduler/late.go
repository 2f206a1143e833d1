package scheduler

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lateAfter is how long a task's pod must have waited for a node, or have had one, before an event says so. Most are
// gone by then, and their task's status has said it at once.
const lateAfter = 30 * time.Second

// late are the events about tasks' pods that are recorded unless the pods are gone by then, by pod; nil once the
// scheduler has stopped. It is guarded by the scheduler's lock.
type late map[types.UID]*lateEvent

type lateEvent struct{ *time.Timer }

// record records an event about whether a pod has a node: since says when it began to wait for one, or got it. It is
// called without the scheduler's lock.
func (s *Scheduler) record(p *corev1.Pod, since time.Time, kind, reason, message string) {
	left := time.Until(since.Add(lateAfter))
	if left <= 0 || !byTask(p) {
		s.event(p, kind, reason, "%s", message)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late == nil || !s.concerns(p.UID, reason) {
		return
	}
	s.late.cancel(p.UID)
	e := &lateEvent{}
	e.Timer = time.AfterFunc(left, func() {
		_ = s.guard.Do("late event", func() {
			if s.due(p.UID, e, reason) {
				s.event(p, kind, reason, "%s", message)
			}
		})
	})
	s.late[p.UID] = e
}

// due reports whether a late event is still true and is the newest one, and forgets it.
func (s *Scheduler) due(pod types.UID, e *lateEvent, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late[pod] != e {
		return false
	}
	delete(s.late, pod)
	return s.concerns(pod, reason)
}

// concerns reports whether a pod is in the state that the reason of an event speaks of.
func (s *Scheduler) concerns(pod types.UID, reason string) bool {
	if reason == "Scheduled" {
		return s.state.pods[pod] != nil
	}
	return s.queue.pods[pod] != nil && s.state.pods[pod] == nil
}

// cancel drops the event about a pod, if there is one.
func (l late) cancel(pod types.UID) {
	if e := l[pod]; e != nil {
		e.Stop()
		delete(l, pod)
	}
}
