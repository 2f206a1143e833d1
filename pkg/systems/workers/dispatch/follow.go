package dispatch

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// follow calls the functions for changes of objects until Stop.
func (d *Dispatcher) follow(ctx context.Context, o ctrl.Object, set func(was, is any), gone func(any)) error {
	informer, err := d.c.Client.Cache().GetInformer(ctx, o)
	if err != nil {
		return err
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(is any) { set(nil, is) },
		UpdateFunc: set,
		DeleteFunc: func(was any) {
			if last, ok := was.(toolscache.DeletedFinalStateUnknown); ok {
				was = last.Obj
			}
			gone(was)
		},
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stops = append(d.stops, func() { _ = informer.RemoveEventHandler(handle) })
	return nil
}

func (d *Dispatcher) followPods() {
	err := d.follow(d.ctx, &corev1.Pod{}, func(was, is any) {
		p, ok := is.(*corev1.Pod)
		if !ok || p.Annotations[workers.AnnotationQueue] == "" {
			return
		}
		ready := receives(p)
		if before, ok := was.(*corev1.Pod); ok && receives(before) == ready {
			return
		}
		d.pod(p, ready, false)
	}, func(was any) {
		if p, ok := was.(*corev1.Pod); ok {
			d.pod(p, false, true)
		}
	})
	if err != nil && d.ctx.Err() == nil {
		d.c.Logger.Error("could not follow pods: no message is delivered", "error", err)
	}
}

func (d *Dispatcher) pod(p *corev1.Pod, ready, gone bool) {
	c, err := workers.ParseQueue(p)
	if c == nil || err != nil {
		return // its agent reports the error
	}
	if s := d.state(KeyOf(p, c)); ready {
		s.set(p, c)
	} else {
		s.unset(p, gone)
	}
}

// KeyOf returns the queue of a pod.
func KeyOf(p *corev1.Pod, c *workers.Queue) queue.Key {
	if c.Worker != "" {
		return queue.Key{Namespace: p.Namespace, Worker: c.Worker}
	}
	return queue.Key{Namespace: p.Namespace, Pod: p.Name}
}

func (d *Dispatcher) followWorkers(ctx context.Context) error {
	return d.follow(ctx, &workers.Worker{}, func(_, is any) {
		if w, ok := is.(*workers.Worker); ok {
			d.setWorker(w)
		}
	}, func(was any) {
		if w, ok := was.(*workers.Worker); ok {
			d.workerGone(w)
		}
	})
}

func (d *Dispatcher) worker(name types.NamespacedName) *workers.Worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.workers[name]
}

// setWorker updates the configuration of a worker's queue. A new worker gets the dead messages that wait for it.
func (d *Dispatcher) setWorker(w *workers.Worker) {
	name := types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
	k := queue.Key{Namespace: w.Namespace, Worker: w.Name}
	d.mu.Lock()
	before := d.workers[name]
	d.workers[name] = w
	s := d.states[k]
	var others []*state
	for _, o := range d.states {
		if o.key.Namespace == w.Namespace && o != s && before == nil {
			others = append(others, o)
		}
	}
	d.mu.Unlock()
	st := &w.Status
	if c := workers.QueueOf(w); c.Stream != "" && st.QueueServer == d.c.Server {
		s = d.state(k)
		d.c.Queues.Place(k, c.Stream)
	}
	if s == nil && (st.Depth != 0 || st.Delayed != 0 || st.InFlight != 0 || st.Dead != 0) && st.QueueServer == d.c.Server {
		s = d.state(k) // corrects what an earlier process has published
	}
	if s != nil && (before == nil || before.Generation != w.Generation || before.UID != w.UID) {
		s.mu.Lock()
		s.configure(w)
		deadLetter := s.config.DeadLetter
		s.changed()
		s.kickLocked()
		s.mu.Unlock()
		if deadLetter != "" {
			s.forward()
		}
	} else if s != nil {
		s.mu.Lock()
		s.worker = w
		s.changed() // another writer's status may have replaced ours
		s.mu.Unlock()
	}
	for _, o := range others {
		o.mu.Lock()
		waits := o.config != nil && o.config.DeadLetter == w.Name
		o.mu.Unlock()
		if waits {
			o.forward()
		}
	}
}

func (s *state) configure(w *workers.Worker) {
	s.worker, s.config, s.deleted = w, workers.QueueOf(w), false
}

// workerGone removes the messages of a deleted worker, with an event that counts them.
func (d *Dispatcher) workerGone(w *workers.Worker) {
	d.mu.Lock()
	delete(d.workers, types.NamespacedName{Namespace: w.Namespace, Name: w.Name})
	s := d.states[queue.Key{Namespace: w.Namespace, Worker: w.Name}]
	d.mu.Unlock()
	if s == nil {
		return
	}
	depth := d.c.Queues.Depth(s.key)
	n := s.purge(false)
	d.c.Queues.Discard(s.key)
	s.mu.Lock()
	s.deleted = true
	s.counts.dropped += uint64(n)
	s.mu.Unlock()
	if n > 0 {
		s.event(corev1.EventTypeWarning, "MessagesDeleted", "%d waiting and %d dead messages were deleted with the worker",
			depth.Waiting, depth.Dead)
	}
	s.mu.Lock()
	s.worker = nil
	s.mu.Unlock()
	d.forget(s)
}

// A status is published publishSoon after a change and at most every publishEvery. A change while no pod is ready is
// published at once: a pod may have to start.
const (
	publishSoon  = 100 * time.Millisecond
	publishEvery = 500 * time.Millisecond
	publishRetry = 2 * time.Second

	maxFailure = 512 // bytes
)

// publisher writes the numbers of a queue to the status of its worker. The state's lock guards it.
type publisher struct {
	timer *time.Timer // nil unless a write is planned or in progress
	again bool
	at    time.Time // of the last write
	off   bool
}

func (p *publisher) halt() {
	if p.off = true; p.timer != nil {
		p.timer.Stop()
	}
}

// changed plans a write of the worker's status. The caller holds s.mu.
func (s *state) changed() {
	if s.key.Worker == "" || s.worker == nil || s.status.off {
		return
	}
	if s.status.timer != nil {
		s.status.again = true
		return
	}
	wait := publishSoon
	if len(s.pods) == 0 {
		wait = 0
	}
	s.publishIn(max(wait, time.Until(s.status.at.Add(publishEvery))))
}

func (s *state) publishIn(d time.Duration) {
	s.status.again = false
	s.status.timer = time.AfterFunc(d, func() { s.d.background(s.publish) })
}

func (s *state) publish() {
	s.mu.Lock()
	w, last := s.worker, s.last
	s.status.again = false
	s.mu.Unlock()
	var err error
	if w != nil {
		err = s.write(w, last)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.timer, s.status.at = nil, time.Now()
	switch {
	case s.status.off:
	case err != nil:
		s.publishIn(publishRetry)
	case s.status.again:
		s.status.again = false
		s.publishIn(publishEvery)
	}
}

// write writes the status if it differs from the worker's.
func (s *state) write(w *workers.Worker, last time.Time) error {
	if at := w.Status.QueueServer; w.Spec.Delivery.Store == workers.StoreNATS && at != "" && at != s.d.c.Server {
		return nil // another server has taken the queue over
	}
	depth := s.d.c.Queues.Depth(s.key)
	is := w.Status
	status := map[string]any{}
	set := func(name string, have int32, n int) {
		if int(have) != n {
			status[name] = n
		}
	}
	set("depth", is.Depth, depth.Waiting-depth.Delayed)
	set("delayed", is.Delayed, depth.Delayed)
	set("inFlight", is.InFlight, depth.InFlight)
	set("dead", is.Dead, depth.Dead)
	failure := ""
	if depth.Failure != nil {
		failure = bounded.Text(depth.Failure.Error(), maxFailure)
	}
	if failure != is.QueueFailure {
		status["queueFailure"] = failure
	}
	if r := w.Spec.Scale; r != nil && !last.IsZero() {
		step := workers.LastMessageStep(time.Duration(r.IdleSeconds) * time.Second)
		if at := is.LastMessageTime; at == nil || last.Sub(at.Time) >= step {
			status["lastMessageTime"] = metav1.NewTime(last)
		}
	}
	if len(status) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	next := w.DeepCopy()
	err = s.d.c.Client.Status().Patch(s.d.ctx, next, ctrl.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err == nil {
		s.mu.Lock()
		if s.worker == w { // the informer may have brought a newer one
			s.worker = next
		}
		s.mu.Unlock()
	}
	return err
}
