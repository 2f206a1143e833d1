package static

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// State is the input of Plan.
type State struct {
	// Node is the UID of the Node object; "" while there is none.
	Node     types.UID
	NodeName string
	// Pods holds the running pods; Ending holds the names of pods that are starting, or ending and not gone.
	Pods   map[types.NamespacedName]*corev1.Pod
	Ending map[types.NamespacedName]bool
	// Mirrors are the mirror pods of this node in the API.
	Mirrors []*corev1.Pod
}

// Change is one step of Plan: a mirror to create or to delete.
type Change struct {
	Name           types.NamespacedName
	Create, Delete *corev1.Pod
}

// Plan returns the changes, sorted by name, that give each pod its mirror and remove all others. A mirror to be
// replaced is deleted first. It is a pure function.
func Plan(s State) (out []Change) {
	has := map[types.NamespacedName]bool{}
	for _, m := range s.Mirrors {
		name := nameOf(m)
		has[name] = true
		p := s.Pods[name]
		if p == nil && s.Ending[name] {
			continue
		}
		if p == nil || m.DeletionTimestamp != nil || !isMirrorOf(m, p, s.Node) {
			out = append(out, Change{Name: name, Delete: m})
		}
	}
	for name, p := range s.Pods {
		if !has[name] && s.Node != "" {
			out = append(out, Change{Name: name, Create: mirrorOf(p, s.NodeName, s.Node)})
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return compareNames(a.Name, b.Name) })
	return out
}

const (
	// mirrorTimeout limits one API request.
	mirrorTimeout     = 30 * time.Second
	mirrorRetryFirst  = time.Second
	mirrorRetryMost   = 5 * time.Minute
	mirrorEventReason = "FailedMirrorPod"
)

// mirrors maintains the mirrors in the API.
type mirrors struct {
	c     Config
	state func() State
	wake  chan struct{}

	mu      sync.Mutex
	ready   bool // the existing mirrors are known
	known   map[types.UID]*corev1.Pod
	deleted map[types.UID]bool // tracked while a create is in flight
	retry   map[types.NamespacedName]backOff
	// shown holds the mirror last passed to each pod. The key is the pod object, not the UID: a pod that is stopped
	// and started again keeps its UID, and must get its mirror again.
	shown map[*corev1.Pod]*corev1.Pod
}

type backOff struct {
	until time.Time
	wait  time.Duration
}

func newMirrors(c Config, state func() State) *mirrors {
	return &mirrors{c: c, state: state, wake: make(chan struct{}, 1), known: map[types.UID]*corev1.Pod{},
		retry: map[types.NamespacedName]backOff{}, shown: map[*corev1.Pod]*corev1.Pod{}}
}

func (m *mirrors) mark() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mirrors) seen(p *corev1.Pod) {
	m.mu.Lock()
	m.known[p.UID] = p
	m.mu.Unlock()
	m.mark()
}

func (m *mirrors) gone(p *corev1.Pod) {
	m.mu.Lock()
	delete(m.known, p.UID)
	if m.deleted != nil {
		m.deleted[p.UID] = true
	}
	m.mu.Unlock()
	m.mark()
}

func (m *mirrors) synced() {
	m.mu.Lock()
	m.ready = true
	m.mu.Unlock()
	m.mark()
}

// nodeChanged ends all back-offs, since the new Node may be allowed requests that the old one was refused.
func (m *mirrors) nodeChanged() {
	m.mu.Lock()
	clear(m.retry)
	m.mu.Unlock()
	m.mark()
}

func (m *mirrors) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		if next := m.reconcile(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// reconcile carries out a plan. It returns when to retry failed changes, or zero.
func (m *mirrors) reconcile(ctx context.Context) (next time.Time) {
	s := m.state()
	m.mu.Lock()
	ready := m.ready
	s.Mirrors = slices.Collect(maps.Values(m.known))
	m.mu.Unlock()
	m.show(s)
	if !ready {
		return time.Time{}
	}
	plan := Plan(s)
	m.forget(plan)
	for _, c := range plan {
		m.mu.Lock()
		b := m.retry[c.Name]
		m.mu.Unlock()
		if time.Now().Before(b.until) {
			next = earlier(next, b.until)
			continue
		}
		err := m.apply(ctx, c)
		if ctx.Err() != nil {
			return time.Time{}
		}
		m.mu.Lock()
		delete(m.retry, c.Name) // the watch event follows
		if err != nil {
			b.wait = min(max(2*b.wait, mirrorRetryFirst), mirrorRetryMost)
			b.until = time.Now().Add(b.wait)
			next, m.retry[c.Name] = earlier(next, b.until), b
		}
		m.mu.Unlock()
		if err != nil {
			m.c.Logger.Warn("could not create or delete the mirror of a static pod, retrying", "pod", c.Name,
				"after", b.wait, "error", err)
			m.c.Event(corev1.EventTypeWarning, mirrorEventReason, fmt.Sprintf("mirror of static pod %s: %v", c.Name, err))
		}
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// forget ends the back-off of names that need no change.
func (m *mirrors) forget(plan []Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.retry, func(name types.NamespacedName, _ backOff) bool {
		return !slices.ContainsFunc(plan, func(c Change) bool { return c.Name == name })
	})
}

// show passes new mirrors to their pods.
func (m *mirrors) show(s State) {
	by := map[types.NamespacedName]*corev1.Pod{}
	for _, mirror := range s.Mirrors {
		if p := s.Pods[nameOf(mirror)]; p != nil && mirror.DeletionTimestamp == nil && isMirrorOf(mirror, p, s.Node) {
			by[nameOf(mirror)] = mirror
		}
	}
	shown := map[*corev1.Pod]*corev1.Pod{}
	for name, p := range s.Pods {
		shown[p] = by[name]
		if before, known := m.shown[p]; !known || before != by[name] {
			m.c.Pods.SetMirror(p.UID, by[name])
		}
	}
	m.shown = shown
}

func (m *mirrors) apply(ctx context.Context, c Change) error {
	ctx, cancel := context.WithTimeout(ctx, mirrorTimeout)
	defer cancel()
	if c.Delete != nil {
		err := m.c.Client.Delete(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Name.Namespace, Name: c.Name.Name}},
			ctrl.GracePeriodSeconds(0), ctrl.Preconditions{UID: &c.Delete.UID})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // the watch event about the deletion follows
		}
		return err
	}
	m.mu.Lock()
	m.deleted = map[types.UID]bool{}
	m.mu.Unlock()
	err := m.c.Client.Create(ctx, c.Create)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && !m.deleted[c.Create.UID] && m.known[c.Create.UID] == nil {
		m.known[c.Create.UID] = c.Create
		m.mark() // reconcile passes it to the pod
	}
	m.deleted = nil
	if apierrors.IsAlreadyExists(err) {
		return errors.New("another pod has the mirror's name: delete that pod, or rename the static pod")
	}
	return err
}
