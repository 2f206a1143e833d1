package pod

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

type op struct {
	Action
	cancel context.CancelFunc

	mu       sync.Mutex
	deadline time.Time
	sooner   chan struct{} // signalled when deadline moved
	final    bool          // SIGKILL was sent: the deadline no longer moves
}

// hurry moves the deadline to t if that is sooner, and limits later extensions to by unless that is zero.
func (o *op) hurry(t, by time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.By = by
	if t.Before(o.deadline) && !o.final {
		o.deadline = t
		select {
		case o.sooner <- struct{}{}:
		default:
		}
	}
}

// extend moves the deadline to t if that is later, but not past By.
func (o *op) extend(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.By.IsZero() && t.After(o.By) {
		t = o.By
	}
	if o.deadline.Before(t) {
		o.deadline = t
	}
}

func (o *op) end() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.deadline
}

// Called with the lock held.
func (w *worker) launch(p *corev1.Pod, a Action) {
	ctx, cancel := context.WithCancel(w.m.ctx)
	b := &op{Action: a, cancel: cancel, sooner: make(chan struct{}, 1), deadline: time.Now().Add(a.Grace)}
	w.actions.inFlight[a.Target] = b
	serial := w.held.allocation.serial
	if !w.m.goRun(func() {
		defer cancel()
		began := time.Now()
		f := w.doGuarded(ctx, p, b)
		failed := f != nil && ctx.Err() == nil
		w.m.metrics.step(string(a.Kind), time.Since(began), failed)
		w.m.metrics.action(p, a.Kind, failed)
		w.m.log.Debug("pod action", "pod", p.Namespace+"/"+p.Name, "action", a.Kind, "on", a.Target, "took",
			time.Since(began), "failure", f)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.actions.inFlight, a.Target)
		switch {
		case ctx.Err() != nil:
		case f != nil && (a.Kind != Resize || w.held.allocation.serial == serial): // or another resize was granted
			w.actions.failures[a.Target] = *f
		default:
			delete(w.actions.failures, a.Target)
		}
		w.loop.wake()
	}) {
		cancel()
		delete(w.actions.inFlight, a.Target)
	}
}

func (w *worker) doGuarded(ctx context.Context, p *corev1.Pod, b *op) (f *Failure) {
	err := w.m.guard.Do("pod action", func() {
		f = w.do(ctx, p, b)
	}, "pod", p.Namespace+"/"+p.Name, "action", b.Kind, "on", b.Target)
	if err != nil {
		w.m.event(p, "", corev1.EventTypeWarning, "InternalError", "internal error of the node agent: "+err.Error())
		return w.fail(b.Target, "InternalError", err, time.Second)
	}
	return f
}
