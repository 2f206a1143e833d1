package messages

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

func (r *receiver) attempt(e *entry) {
	if e.seq != 0 {
		r.m.log.try(e.seq, e.Attempts)
	}
}

func (r *receiver) finished(e *entry) {
	if e.seq != 0 {
		r.m.log.done(e.seq)
	}
	e.payload.release()
}

func (r *receiver) undeliverable(e *entry, o Outcome) { r.m.background(func() { r.giveUp(e, o) }) }

func (r *receiver) moved(e *entry) {
	r.m.background(func() { r.m.elsewhere(r.pod, r.queue.config, e, "") })
}

// giveUp sends a failed message to the dead-letter worker, or drops it if there is none.
func (r *receiver) giveUp(e *entry, o Outcome) {
	why := string(o.Failure) + ": " + o.Text
	if r.queue.config.DeadLetter != "" {
		r.m.elsewhere(r.pod, r.queue.config, e, why)
		return
	}
	r.m.drop(r.pod, e, o.Failure, why)
}

// drop gives up a message, with an event and a count.
func (m *Manager) drop(p *corev1.Pod, e *entry, f workers.Failure, why string) {
	if m.ctx.Err() != nil && e.seq != 0 {
		return // the agent stops; its next start reads the message from the log
	}
	m.mu.Lock()
	m.counted[f]++
	m.mu.Unlock()
	m.c.Event(p, corev1.EventTypeWarning, "MessageLost",
		fmt.Sprintf("A message was dropped after %d attempts: %s", e.Attempts, why))
	m.c.Logger.Info("message dropped", "pod", p.Namespace+"/"+p.Name, "id", e.ID, "attempts", e.Attempts, "reason", why)
	if e.seq != 0 {
		m.log.done(e.seq)
	}
	e.payload.release()
}
