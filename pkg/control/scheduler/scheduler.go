// Package scheduler assigns pods to nodes by the profile that they name in spec.schedulerName. Its invariant: a
// pod's resources are accounted to its node from the decision on, before it is bound, so that no node is
// overcommitted. One goroutine decides; others write the bindings.
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
)

// Identity is the user that the scheduler acts as.
const Identity = "system:kube-scheduler"

// Config configures a Scheduler.
type Config struct {
	// Client accesses the cluster as Identity. Required.
	Client client.Interface
	// Configuration has the profiles, and the percentage of nodes to score in clusters of more than 100 nodes
	// (default 10, at least 100 nodes).
	Configuration Configuration
	// Devices creates the allocator for one attempt. If it is nil, pods with resource claims are not scheduled.
	Devices func(context.Context, Inventory) (Allocate, error)
	// Binders is the maximum number of concurrent bindings. Default 64.
	Binders int
	// DeviceTimeout limits how long devices with binding conditions may take to become ready. Default 10 minutes.
	DeviceTimeout time.Duration
	// TaskPatience is how long a node may send no heartbeat before its tasks are lost. Such a node gets no tasks.
	// Default tasks.DefaultPatience.
	TaskPatience time.Duration
	// Metrics registers the scheduler's metrics. May be nil.
	Metrics prometheus.Registerer
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Validate reports invalid fields.
func (c Config) Validate() error {
	switch {
	case c.Client == nil:
		return errors.New("scheduler: Client is required")
	case c.TaskPatience < 0:
		return fmt.Errorf("scheduler: TaskPatience of %s: must not be negative", c.TaskPatience)
	case c.DeviceTimeout < 0:
		return fmt.Errorf("scheduler: DeviceTimeout of %s: must not be negative", c.DeviceTimeout)
	case c.Binders < 0:
		return fmt.Errorf("scheduler: Binders of %d: must not be negative", c.Binders)
	}
	return nil
}

// Scheduler is the component "scheduler".
type Scheduler struct {
	client  client.Interface
	binders int
	log     *slog.Logger
	events  *events.Recorder
	// Ready once all nodes and pods are known.
	run.Readiness
	guard   run.Guard
	metrics *metrics
	// preBinds run before each binding.
	preBinds []preBind

	mu         sync.Mutex // guards the fields below
	state      *state
	queue      *queue
	heartbeats heartbeats
	late       late

	storageMu      sync.Mutex
	storageChanged chan struct{} // closed at the next change of a claim, volume or class; nil if no goroutine waits
}

// New creates the component.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Scheduler{client: cfg.Client, binders: cfg.Binders, log: cfg.Log, late: late{}}
	s.binders = cmp.Or(s.binders, 64)
	if s.log == nil {
		s.log = slog.Default()
	}
	s.guard = run.Guard{Log: s.log, Component: s.Name()}
	sample := cmp.Or(cfg.Configuration.SamplePercent, 10)
	s.events = events.New(cfg.Client, corev1.DefaultSchedulerName, "", cfg.Log)
	s.metrics = newMetrics(cfg.Metrics, s)
	s.queue = newQueue()
	s.queue.later = s.backedOff
	s.state = newState(sample, s.namespaceLabels)
	if len(cfg.Configuration.profiles) > 0 {
		s.state.profiles = cfg.Configuration.profiles
	}
	s.state.budgets = s.budgets
	s.state.volumes.read = cfg.Client.Cache()
	s.state.devices.read, s.state.devices.allocator = cfg.Client.Cache(), cfg.Devices
	s.state.devices.timeout = cmp.Or(cfg.DeviceTimeout, bindingTimeout)
	s.state.gangs.read = cfg.Client.Cache()
	s.preBinds = []preBind{{name: "VolumeBinding", run: s.bindVolumes}, {name: dynamicResources, run: s.bindDevices}}
	s.heartbeats.cache, s.heartbeats.patience = cfg.Client.Cache(), cmp.Or(cfg.TaskPatience, tasks.DefaultPatience)
	s.state.heartbeat, s.state.silent = s.heartbeats.of, s.heartbeats.silent
	return s, nil
}

// Name implements run.Component.
func (s *Scheduler) Name() string { return "scheduler" }

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

	s.useDevices(ctx, &wg)
	s.useGangs(ctx, &wg)
	s.useHeartbeats(ctx, &wg)
	for _, o := range []ctrlclient.Object{&corev1.Namespace{}, &policyv1.PodDisruptionBudget{}} {
		if _, err := s.client.Cache().GetInformer(ctx, o); err != nil {
			return s.stopped(ctx, fmt.Errorf("watch %T: %w", o, err))
		}
	}
	type watched struct {
		object  ctrlclient.Object
		handler toolscache.ResourceEventHandler
	}
	var all []watched
	for _, o := range storageKinds() {
		all = append(all, watched{o, storageHandler{s}})
	}
	// Nodes come before pods, so that no pod is rejected because a node is not known yet.
	for _, w := range append(all, watched{&corev1.Node{}, nodeHandler{s}}, watched{&corev1.Pod{}, podHandler{s}}) {
		end, err := client.Follow(ctx, s.client.Cache(), w.object, w.handler)
		if err != nil {
			return s.stopped(ctx, err)
		}
		defer end()
	}
	defer s.drop()
	s.SetReady()
	s.loop(ctx, &wg)
	return nil
}

func (s *Scheduler) stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Scheduler) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.queue.pods {
		s.queue.remove(p)
	}
	for pod := range s.late {
		s.late.cancel(pod)
	}
	s.late = nil
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

// loop schedules one pod at a time. It takes a slot before a pod, so that at most s.binders pods are underway.
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

// next schedules the next pod and returns a function that writes the result. It returns nil if the queue is empty. A
// pod on which the scheduler panics goes into back-off, so that others are scheduled.
func (s *Scheduler) next() (write func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.queue.bindable(); p != nil {
		return s.binding(p, p.reserved)
	}
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
		s.unreserve(p)
		s.backOff(p)
	}
	return func(context.Context) {
		s.event(pod, corev1.EventTypeWarning, "FailedScheduling", "internal error of the scheduler, retrying: %s", err)
	}
}

// backOff puts a pod that is underway into exponential back-off.
func (s *Scheduler) backOff(p *pending) {
	if p.newer != nil {
		p.info, p.newer = s.state.info(p.newer), nil
	}
	p.attempts = max(p.attempts, 1) + 1
	p.failed = now()
	s.queue.put(p)
	s.queue.retry(p, p.failed)
}

// decide picks a node for a pod, or determines why no node fits, and returns a function that writes the result.
func (s *Scheduler) decide(p *pending) func(context.Context) {
	if p.info.gang.Name != "" {
		if write := s.decideTogether(p); write != nil {
			return write
		}
	}
	s.reconsider(p)
	n, failed := s.state.pick(p.info)
	if failed != nil {
		return s.fail(p, failed)
	}
	promised := s.state.clearNomination(p.info.pod.UID)
	err := s.reserve(p, n)
	if promised != nil && promised != n {
		s.help(promised)
	}
	if err != nil {
		return s.couldNotReserve(p, fmt.Sprintf("could not reserve on node %s: %s", n.name, err))
	}
	return s.binding(p, n)
}

// binding returns a function that binds a pod to its reserved node.
func (s *Scheduler) binding(p *pending, n *nodeInfo) func(context.Context) {
	if p.report != nil {
		p.report, p.reported = nil, "" // do not write the report
	}
	pod := p.info.pod // the event of the binding replaces p.info.pod, perhaps before an error arrives
	return func(ctx context.Context) {
		var err error
		if p := s.guard.Do("binding", func() { err = s.commit(ctx, p, n.name) }); p != nil {
			err = p
		}
		if errors.Is(err, errNotReady) {
			s.await(ctx, p, n.name)
			return
		}
		if err != nil && ctx.Err() == nil {
			s.abandonExtended(ctx, pod)
			s.refused(p, n.name, err)
		}
	}
}

// couldNotReserve retries a pod, and returns a function that reports the message.
func (s *Scheduler) couldNotReserve(p *pending, message string) func(context.Context) {
	pod := p.info.pod
	s.metrics.failed.count(p)
	s.backOff(p)
	return func(context.Context) { s.event(pod, corev1.EventTypeWarning, "FailedScheduling", "%s", message) }
}

// eventEvery is the minimum interval of equal events about a pod, which may be retried whenever another pod ends.
const eventEvery = 5 * time.Minute

// fail marks a pod unschedulable, and returns a function that writes its condition and evicts the victims.
func (s *Scheduler) fail(p *pending, f *failure) func(context.Context) {
	e, text := f.preempt()
	message := f.message(text)
	s.metrics.unschedulable.count(p)
	p.attempts++
	p.failed = time.Now()
	p.wide = f.wide()
	s.queue.put(p)
	pod := p.info.pod
	var victims []*corev1.Pod
	switch {
	case e != nil:
		s.promise(p.info, e.node)
		for _, v := range e.victims {
			victims = append(victims, v.pod)
		}
	case s.expect(p, f) || f.waits():
	default:
		// No terminating pod will make the nominated node fit, so end the nomination.
		s.promise(p.info, nil)
	}
	nominated := s.state.nominated(pod.UID)
	release := s.unusable(f)
	same := message == p.reported && nominated == pod.Status.NominatedNodeName
	p.reported = message
	if p.report == nil && !same || p.report != nil && (p.report.message != message || p.report.nominated != nominated) {
		p.report = &report{pod, message, nominated}
	}
	due := !same || p.failed.Sub(p.recorded) >= eventEvery
	if due {
		p.recorded = p.failed
	}
	since := p.since
	return func(ctx context.Context) {
		if due {
			s.record(pod, since, corev1.EventTypeWarning, "FailedScheduling", message)
		}
		s.report(ctx, p)
		s.evict(ctx, pod, victims)
		release(ctx)
	}
}
