package scheduler

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lateAfter is how long a task's pod must have waited for a node, or have had one, before an event reports it. Most
// such pods end earlier, and their task's status shows the state at once.
const lateAfter = 30 * time.Second

// late contains, by pod, the delayed events about tasks' pods. An event is dropped if its pod ends before. The map
// is nil after the scheduler has stopped. It is guarded by the scheduler's lock.
type late map[types.UID]*lateEvent

type lateEvent struct{ *time.Timer }

// record records an event about whether a pod has a node, for pods of tasks only lateAfter since. since is when the
// pod began to wait, or got its node. The caller must not hold the lock.
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

// due removes a late event. It reports whether the event is the newest one and still true.
func (s *Scheduler) due(pod types.UID, e *lateEvent, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late[pod] != e {
		return false
	}
	delete(s.late, pod)
	return s.concerns(pod, reason)
}

func (s *Scheduler) concerns(pod types.UID, reason string) bool {
	if reason == "Scheduled" {
		return s.state.pods[pod] != nil
	}
	return s.queue.pods[pod] != nil && s.state.pods[pod] == nil
}

func (l late) cancel(pod types.UID) {
	if e := l[pod]; e != nil {
		e.Stop()
		delete(l, pod)
	}
}
