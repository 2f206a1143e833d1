// Package scheduler gives pods a node.
//
// It may import client and events. Its invariant: what a pod was promised
// counts from the moment it was chosen, before it is bound, so no two pods are
// promised the same room. One goroutine decides; binding is done by others.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/events"
	"github.com/coracle-dev/coracle/pkg/run"
)

// Identity is the user the scheduler acts as.
const Identity = "system:kube-scheduler"

// Config is what the scheduler needs.
type Config struct {
	// Client reaches the cluster, as Identity. Required.
	Client client.Interface
	// Name is the spec.schedulerName of the pods it places; empty means "default-scheduler".
	Name string
	// SamplePercent is the part of the nodes among which the best is chosen once they are more than 100
	// (then at least 100 of them); 0 means 10.
	SamplePercent int
	// Binders is how many bindings are written at once; 0 means 64.
	Binders int
	// Metrics takes the scheduler's metrics; nil for none.
	Metrics prometheus.Registerer
	// Log is slog.Default() if nil.
	Log *slog.Logger
}

// Validate checks a Config.
func (c Config) Validate() error {
	switch {
	case c.Client == nil:
		return errors.New("scheduler: Client is required")
	case c.SamplePercent < 0 || c.SamplePercent > 100:
		return fmt.Errorf("scheduler: SamplePercent of %d: must be from 0 to 100", c.SamplePercent)
	case c.Binders < 0:
		return fmt.Errorf("scheduler: Binders of %d: must not be negative", c.Binders)
	}
	return nil
}

// Scheduler is the component "scheduler".
type Scheduler struct {
	client  client.Interface
	name    string
	binders int
	log     *slog.Logger
	events  *events.Recorder
	ready   chan struct{}
	guard   run.Guard
	metrics *metrics
	// preBinds run before each binding.
	preBinds []preBind

	mu    sync.Mutex // guards what follows
	state *state
	queue *queue
}

// New makes the component.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Scheduler{client: cfg.Client, name: cfg.Name, binders: cfg.Binders, log: cfg.Log, ready: make(chan struct{})}
	if s.name == "" {
		s.name = corev1.DefaultSchedulerName
	}
	if s.binders == 0 {
		s.binders = 64
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.guard = run.Guard{Log: s.log, Component: s.Name()}
	sample := cfg.SamplePercent
	if sample == 0 {
		sample = 10
	}
	s.events = events.New(cfg.Client, s.name, "", cfg.Log)
	s.metrics = newMetrics(cfg.Metrics, s)
	s.queue = newQueue()
	s.queue.later = s.backedOff
	s.state = newState(sample, s.namespaceLabels)
	return s, nil
}

// Name implements run.Component.
func (s *Scheduler) Name() string { return "scheduler" }

// Ready implements run.Component: all nodes and pods are known.
func (s *Scheduler) Ready() <-chan struct{} { return s.ready }

var _ run.Component = (*Scheduler)(nil)

func (s *Scheduler) namespaceLabels(name string) map[string]string {
	var ns corev1.Namespace
	if s.client.Cache().Get(context.Background(), ctrlclient.ObjectKey{Name: name}, &ns) != nil {
		return nil
	}
	return ns.Labels
}

// Run implements run.Component.
func (s *Scheduler) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { s.guard.Loop(ctx, "events", s.events.Run) })

	// Nodes before pods, so that no pod is refused only because its node was not known yet.
	if _, err := s.client.Cache().GetInformer(ctx, &corev1.Namespace{}); err != nil {
		return s.stopped(ctx, fmt.Errorf("informer of namespaces: %w", err))
	}
	for _, w := range []struct {
		object  ctrlclient.Object
		handler toolscache.ResourceEventHandler
	}{{&corev1.Node{}, nodeHandler{s}}, {&corev1.Pod{}, podHandler{s}}} {
		inf, err := s.client.Cache().GetInformer(ctx, w.object)
		if err != nil {
			return s.stopped(ctx, fmt.Errorf("informer of %T: %w", w.object, err))
		}
		reg, err := inf.AddEventHandler(w.handler)
		if err != nil {
			return s.stopped(ctx, fmt.Errorf("informer of %T: %w", w.object, err))
		}
		defer func() { _ = inf.RemoveEventHandler(reg) }() // an informer that stopped has none left
		select {
		case <-reg.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil
		}
	}
	defer s.drop()
	close(s.ready)
	s.loop(ctx, &wg)
	return nil
}

func (s *Scheduler) stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// drop stops the timers of the pods that wait.
func (s *Scheduler) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.queue.pods {
		s.queue.remove(p)
	}
}

func (s *Scheduler) backedOff(p *pending) {
	_ = s.guard.Do("back-off", func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.where == backingOff && s.queue.pods[p.info.pod.UID] == p {
			s.queue.activate(p)
		}
	})
}

// loop places one pod after the other. A slot is taken before a pod is, so that no more than
// s.binders are underway.
func (s *Scheduler) loop(ctx context.Context, wg *sync.WaitGroup) {
	slots := make(chan struct{}, s.binders)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		write := s.next()
		for write == nil {
			select {
			case <-s.queue.wake:
			case <-ctx.Done():
				return
			}
			write = s.next()
		}
		wg.Go(func() {
			defer func() { <-slots }()
			_ = s.guard.Do("write", func() { write(ctx) })
		})
	}
}

// next decides about the next pod and returns what is to be written; nil if there is none. A pod that makes the scheduler
// panic backs off, and the others have their turn.
func (s *Scheduler) next() (write func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.queue.pop()
	if p == nil {
		return nil
	}
	pod := p.info.pod
	err := s.guard.Do("scheduling attempt", func() { write = s.decide(p) }, "pod", pod.Namespace+"/"+pod.Name)
	if err == nil {
		return write
	}
	s.metrics.failed.count(p)
	if p.where == underway {
		s.giveBack(p)
		s.backOff(p)
	}
	return func(context.Context) {
		s.events.Event(pod, corev1.EventTypeWarning, "FailedScheduling", "internal error of the scheduler, retrying: %s", err)
	}
}

// backOff lets a pod that is underway wait before it is tried again, longer each time.
func (s *Scheduler) backOff(p *pending) {
	if p.newer != nil {
		p.info, p.newer = newPodInfo(p.newer), nil
	}
	p.attempts = max(p.attempts, 1) + 1
	p.failed = now()
	s.queue.put(p)
	s.queue.retry(p, p.failed)
}

// decide finds a node for a pod or says why there is none, and returns what is to be written.
func (s *Scheduler) decide(p *pending) func(context.Context) {
	n, failed := s.state.pick(p.info)
	if failed == nil {
		promised := s.state.unnominate(p.info.pod.UID)
		err := s.reserve(p, n)
		if promised != nil && promised != n {
			s.help(promised)
		}
		if err != nil {
			pod := p.info.pod
			s.metrics.failed.count(p)
			s.backOff(p)
			return func(context.Context) {
				s.events.Event(pod, corev1.EventTypeWarning, "FailedScheduling", "could not reserve on node %s: %s", n.name, err)
			}
		}
		return func(ctx context.Context) {
			var err error
			if p := s.guard.Do("binding", func() { err = s.commit(ctx, p, n.name) }); p != nil {
				err = p
			}
			if err != nil && ctx.Err() == nil {
				s.refused(p, n.name, err)
			}
		}
	}
	return s.fail(p, failed)
}

// fail puts the pod aside until something happens that can help, and returns what to write about it.
func (s *Scheduler) fail(p *pending, f *failure) func(context.Context) {
	e, text := f.preempt()
	message := f.message(text)
	s.metrics.unschedulable.count(p)
	p.attempts++
	p.failed = time.Now()
	p.wide = f.wide()
	s.queue.put(p)
	pod := p.info.pod
	nominated := pod.Status.NominatedNodeName
	var victims []*corev1.Pod
	if e == nil && !f.waits() {
		// Nothing that is on its way will make the nominated node fit: what was promised there is free for others.
		if n := s.state.unnominate(pod.UID); n != nil {
			s.help(n)
		}
		nominated = ""
	}
	if e != nil {
		s.state.nominate(p.info, e.node)
		nominated = e.node.name
		for _, v := range e.victims {
			victims = append(victims, v.pod)
		}
	}
	again := message == p.told && nominated == pod.Status.NominatedNodeName
	p.told = message
	return func(ctx context.Context) {
		s.events.Event(pod, corev1.EventTypeWarning, "FailedScheduling", "%s", message)
		if !again {
			s.report(ctx, pod, corev1.PodReasonUnschedulable, message, nominated)
		}
		s.evict(ctx, pod, victims)
	}
}
