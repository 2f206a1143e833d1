package eviction

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

const (
	// period is the interval between checks if the kernel does not notify, as in the kubelet.
	period = 10 * time.Second
	// leastPause is the minimum interval between two checks, whatever the rate of the kernel's notifications.
	leastPause = time.Second
	// endTime is how long to wait for an evicted pod to end before selecting another.
	endTime = 30 * time.Second
	// walkShare limits the cost of walking a pod's files: after a walk of 1 s, the next one starts 200 s later.
	walkShare = 200
	// All pods are walked until askedTime after the last call of Usage, which waits up to firstWalk for the first walk.
	askedTime = 10 * time.Minute
	firstWalk = 2 * time.Second
)

// Machine measures the machine's resources.
type Machine interface {
	// Read returns the signals that can be read. It is called every 10 s and must be cheap.
	Read() map[config.Signal]Reading
	// Watch calls wake when fewer than below bytes may be available, possibly too often, until ctx is done.
	Watch(ctx context.Context, below int64, wake func())
}

// Pods is the Manager's interface to the node's pods.
type Pods interface {
	// Active returns the pods that are neither terminated nor being terminated by the agent, without Usage.
	Active() []Pod
	// Measure walks a pod's files and reads its memory usage.
	Measure(ctx context.Context, p *corev1.Pod) (*Usage, error)
	// Evict terminates a pod at once. The channel is closed when its resources are released; nil if the pod is gone.
	Evict(uid types.UID, e Eviction) <-chan struct{}
	// Reclaim removes unused resources: exited containers and images.
	Reclaim(ctx context.Context) error
}

// Config configures a Manager.
type Config struct {
	Policy
	// Machine may be nil; then only the pods' own limits are enforced.
	Machine Machine
	Pods    Pods
	// Changed is called when Conditions changed.
	Changed func()
	// Event records an event on the node.
	Event func(kind, reason, message string)
	// Beside, if not nil, is called once per round in the background, one call at a time, for other periodic checks.
	Beside func()
	Logger *slog.Logger
}

// Manager evicts pods of a node under pressure.
type Manager struct {
	c Config

	mu        sync.Mutex
	pressures map[corev1.NodeConditionType]Pressure
	signals   map[config.Signal]Reading

	usage   map[types.UID]*measured
	walking bool
	walked  chan struct{} // closed and replaced when all pods that are due were walked
	asked   time.Time     // the last call of Usage
	beside  atomic.Bool   // Beside is running

	woken    chan struct{}
	walks    sync.WaitGroup
	helpless bool // the last attempt found no pod to evict; owned by Run
}

type measured struct {
	usage *Usage
	next  time.Time
}

// New returns a Manager. It does nothing before Look or Run.
func New(c Config) *Manager {
	return &Manager{
		c: c, usage: map[types.UID]*measured{}, walked: make(chan struct{}), woken: make(chan struct{}, 1),
	}
}

func (m *Manager) wake() {
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// Look reads the machine once without acting, so that Conditions are correct before Run.
func (m *Manager) Look() {
	if m.c.Machine == nil {
		return
	}
	signals := m.c.Machine.Read()
	m.mu.Lock()
	m.signals = signals
	before := m.pressures
	m.mu.Unlock()
	m.setPressures(Plan(m.c.Policy, before, Observed{Signals: signals}, time.Now()).Pressures)
}

// Run runs until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	defer m.walks.Wait()
	if threshold, has := m.c.Thresholds[config.MemoryAvailable]; has && m.c.Machine != nil {
		m.walks.Go(func() { m.c.Machine.Watch(ctx, threshold.Of(m.Reading(config.MemoryAvailable).Capacity), m.wake) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.woken: // keep leastPause between checks
			if since := time.Since(last); since < leastPause {
				timer.Reset(leastPause - since)
				continue
			}
		}
		last = time.Now()
		m.lookBeside()
		for m.round(ctx) { // after an eviction, check again
		}
		timer.Reset(period)
	}
}

func (m *Manager) lookBeside() {
	if m.c.Beside == nil || !m.beside.CompareAndSwap(false, true) {
		return
	}
	m.walks.Go(func() {
		defer m.beside.Store(false)
		m.c.Beside()
	})
}

// Reading returns the last reading of a signal.
func (m *Manager) Reading(s config.Signal) Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.signals[s]
}

// Pressures returns the node's pressure conditions that are True, ordered by name, with their messages.
func (m *Manager) Pressures() (kinds []corev1.NodeConditionType, why []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(m.pressures)) {
		kinds, why = append(kinds, kind), append(why, m.pressures[kind].Why)
	}
	return kinds, why
}

// Conditions returns the node's pressure conditions, worded as in the kubelet.
func (m *Manager) Conditions() []corev1.NodeCondition {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []corev1.NodeCondition
	for _, t := range texts {
		c := corev1.NodeCondition{Type: t.kind, Status: corev1.ConditionFalse, Reason: t.no, Message: t.noText}
		if p, is := m.pressures[t.kind]; is {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, t.yes, t.yesText+": "+p.Why
		}
		all = append(all, c)
	}
	return all
}

var texts = []struct {
	kind                     corev1.NodeConditionType
	yes, yesText, no, noText string
	eventYes, eventNo        string
}{
	{corev1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
		"KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasInsufficientMemory",
		"NodeHasSufficientMemory"},
	{corev1.NodeDiskPressure, "KubeletHasDiskPressure", "kubelet has disk pressure",
		"KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"},
	{corev1.NodePIDPressure, "KubeletHasInsufficientPID", "kubelet has insufficient PID available",
		"KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasInsufficientPID", "NodeHasSufficientPID"},
}

func (m *Manager) setPressures(now map[corev1.NodeConditionType]Pressure) {
	m.mu.Lock()
	before := m.pressures
	m.pressures = now
	m.mu.Unlock()
	changed := false
	for _, t := range texts {
		was, had := before[t.kind]
		is, has := now[t.kind]
		changed = changed || had != has || was.Why != is.Why
		if had == has {
			continue
		}
		reason := t.eventNo
		if has {
			reason = t.eventYes
			m.c.Logger.Warn("node pressure started", "condition", t.kind, "reason", is.Why)
		} else {
			m.c.Logger.Info("node pressure ended", "condition", t.kind)
		}
		m.c.Event(corev1.EventTypeNormal, reason, "Node status is now: "+reason)
	}
	if changed {
		m.c.Changed()
	}
}

// round observes, plans and acts. It returns true if another round should follow immediately.
func (m *Manager) round(ctx context.Context) bool {
	o := Observed{Pods: m.c.Pods.Active()}
	m.walk(ctx, o.Pods)
	for ctx.Err() == nil {
		if m.c.Machine != nil {
			o.Signals = m.c.Machine.Read()
		}
		m.mu.Lock()
		m.signals = o.Signals
		before := m.pressures
		m.mu.Unlock()
		d := Plan(m.c.Policy, before, o, time.Now())
		m.setPressures(d.Pressures)
		switch {
		case d.Reclaim:
			m.c.Event(corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim "+string(d.Starved))
			if err := m.c.Pods.Reclaim(ctx); err != nil && ctx.Err() == nil {
				m.c.Logger.Warn("could not remove all unused containers and images", "error", err)
			}
			o.Reclaimed = true
		case d.Measure:
			if !o.Reclaimed {
				m.c.Event(corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim "+string(d.Starved))
			}
			for i := range o.Pods {
				o.Pods[i].Usage = m.measure(ctx, o.Pods[i].Pod)
			}
			o.Measured = true
		case len(d.Evict) > 0:
			m.evict(ctx, d.Evict)
			return d.Starved != "" && ctx.Err() == nil
		default:
			if d.Starved != "" && !m.helpless {
				m.c.Logger.Warn("no pod can be evicted under node pressure", "resource", d.Starved)
			}
			m.helpless = d.Starved != ""
			return false
		}
	}
	return false
}

// Usage returns the usage of pods at their last walk, by UID. While it is called, Run walks all pods.
func (m *Manager) Usage(ctx context.Context) map[types.UID]*Usage {
	m.mu.Lock()
	first, walked := time.Since(m.asked) > askedTime, m.walked
	m.asked = time.Now()
	m.mu.Unlock()
	if first {
		m.wake()
		ctx, cancel := context.WithTimeout(ctx, firstWalk)
		defer cancel()
		select {
		case <-walked:
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[types.UID]*Usage, len(m.usage))
	for uid, last := range m.usage {
		if last.usage != nil {
			all[uid] = last.usage
		}
	}
	return all
}

// endWalk wakes the callers of Usage. The caller must hold m.mu.
func (m *Manager) endWalk() {
	m.walking = false
	close(m.walked)
	m.walked = make(chan struct{})
}

// walk adds the last measured usage to pods with a storage limit. Pods that are due are measured in the background,
// since walking a million files must not block the Manager; a pod over its limit triggers a check.
func (m *Manager) walk(ctx context.Context, pods []Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, known := time.Now(), map[types.UID]bool{}
	asked := now.Sub(m.asked) <= askedTime
	var due []Pod
	for i := range pods {
		p := &pods[i]
		known[p.UID] = true
		if !asked && !Limited(*p) {
			continue
		}
		last := m.usage[p.UID]
		if last != nil {
			p.Usage = last.usage
		}
		if last == nil || !now.Before(last.next) {
			due = append(due, *p)
		}
	}
	maps.DeleteFunc(m.usage, func(uid types.UID, _ *measured) bool { return !known[uid] })
	if m.walking {
		return
	}
	if len(due) == 0 {
		m.endWalk()
		return
	}
	m.walking = true
	m.walks.Go(func() {
		for _, p := range due {
			if p.Usage = m.measure(ctx, p.Pod); exceeds(p) != "" {
				m.wake()
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.endWalk()
	})
}

func (m *Manager) measure(ctx context.Context, p *corev1.Pod) *Usage {
	began := time.Now()
	u, err := m.c.Pods.Measure(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			m.c.Logger.Warn("could not measure pod usage", "pod", p.Namespace+"/"+p.Name, "error", err)
		}
		u = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usage[p.UID] = &measured{u, began.Add(max(period-leastPause, walkShare*time.Since(began)))}
	return u
}

func (m *Manager) evict(ctx context.Context, list []Eviction) {
	var ends []<-chan struct{}
	for _, e := range list {
		m.c.Logger.Info("evicting pod", "pod", e.Pod.Namespace+"/"+e.Pod.Name, "reason", e.Message)
		if end := m.c.Pods.Evict(e.Pod.UID, e); end != nil {
			ends = append(ends, end)
		}
	}
	timer := time.NewTimer(endTime)
	defer timer.Stop()
	for _, end := range ends {
		select {
		case <-end:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
