// Package nodelifecycle monitors nodes. A node that stops sending heartbeats is marked Unknown and tainted, and its
// pods become not ready. If so many nodes are lost at once that a network partition is likely, their pods are not
// evicted. Its invariant: it changes only taints that follow from conditions.
package nodelifecycle

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/control/heartbeat"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// New declares the reconciler. A node is lost after patience without a heartbeat. 0 means DefaultPatience.
func New(patience time.Duration) *engine.Reconciler {
	patience = cmp.Or(patience, DefaultPatience)
	var l *listener
	return &engine.Reconciler{
		Name: "nodelifecycle", Account: "node-controller", Workers: 2,
		Watches: []engine.Watch{
			{Object: &corev1.Node{}, Event: func(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
				return l.node(env, was, is)
			}},
			{
				Object: &coordinationv1.Lease{},
				Event: func(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
					l.heard.Lease(was, is, env.Now())
					return nil // the node is checked when its grace period ends
				},
			},
		},
		Reads: []client.Object{&corev1.Pod{}},
		Writes: []engine.Write{
			{Object: &corev1.Node{}, Parts: []engine.Part{engine.Status, engine.Spec}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Status}},
		},
		Indexes: []engine.Index{podstate.ByNode()},
		New: func(env engine.Env) engine.Func {
			l = &listener{heard: &heartbeat.Record{}, census: newCensus(), evicted: map[string]turn{}}
			return engine.Each(env, (&reconciler{env, l, patience}).reconcile)
		},
	}
}

// listener records heartbeats and counts nodes by zone.
type listener struct {
	heard *heartbeat.Record

	mu      sync.Mutex
	census  *census
	evicted map[string]turn // by zone
}

// turn is the last eviction in a zone.
type turn struct {
	node string
	at   time.Time
}

// count records the node's current state, nil if it was deleted. It returns all lost nodes if this changes an Eviction.
func (l *listener) count(name string, is *corev1.Node) []engine.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, known := l.census.nodes[name]
	zones := []string{was.zone}
	var m *member
	if is != nil {
		m = &member{zone(is), well(is.Status.Conditions)}
		zones = append(zones, m.zone)
	}
	if m == nil && !known || known && m != nil && *m == was {
		return nil
	}
	state := func() (all []Eviction) {
		for _, z := range zones {
			e, _ := l.census.eviction(z)
			all = append(all, e)
		}
		return all
	}
	before := state()
	l.census.set(name, m)
	if slices.Equal(before, state()) {
		return nil
	}
	var all []engine.Request
	for _, name := range l.census.unwell() {
		all = append(all, engine.RequestFor("", name))
	}
	return all
}

// eviction decides whether a lost node's pods are evicted now. It returns when to check again, or 0.
func (l *listener) eviction(n *corev1.Node, now time.Time) (Eviction, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	z := zone(n)
	// Count the node as lost: its status may not be updated yet.
	was, known := l.census.nodes[n.Name]
	l.census.set(n.Name, &member{zone: z})
	e, wait := l.census.eviction(z)
	if l.census.set(n.Name, nil); known {
		l.census.set(n.Name, &was)
	}
	if e != Evict || evicted(n) {
		return e, 0
	}
	if last, ok := l.evicted[z]; ok && last.node != n.Name {
		if left := last.at.Add(wait).Sub(now); left > 0 {
			return Hold, left
		}
	}
	l.evicted[z] = turn{n.Name, now}
	return Evict, 0
}

// node records a status update. It enqueues the node if more than the heartbeat time changed.
func (l *listener) node(env engine.Env, was, is client.Object) []engine.Request {
	l.heard.Node(was, is, env.Now())
	if is == nil {
		return l.count(was.GetName(), nil)
	}
	n, ok := is.(*corev1.Node)
	if !ok {
		return nil
	}
	others := l.count(n.Name, n)
	req := append(others, engine.RequestFor("", n.Name))
	old, ok := was.(*corev1.Node)
	if !ok {
		return req
	}
	if old.Spec.Unschedulable == n.Spec.Unschedulable && equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints) &&
		sameStatus(old.Status.Conditions, n.Status.Conditions) {
		return others
	}
	return req
}

func sameStatus(a, b []corev1.NodeCondition) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Type != b[i].Type || a[i].Status != b[i].Status {
			return false
		}
	}
	return true
}

type reconciler struct {
	engine.Env
	l        *listener
	patience time.Duration
}

func (r *reconciler) reconcile(ctx context.Context, n *corev1.Node) (engine.Result, error) {
	now := r.Now()
	heard, next := r.l.heard.Silent(n.Name, now, r.patience)
	o := Observed{Node: n, Heard: heard, Patience: r.patience}
	var turn time.Duration
	if o.lost(now) {
		o.Eviction, turn = r.l.eviction(n, now)
	}
	a := Plan(o, now)
	if a.Again > 0 {
		a.Again = next
	}
	if turn > 0 && (a.Again == 0 || turn < a.Again) {
		a.Again = turn
	}
	changed := n.DeepCopy()
	if a.Conditions != nil {
		changed.Status.Conditions = a.Conditions
		if err := r.Client.Status().Update(ctx, changed); err != nil {
			return engine.Result{}, err
		}
		r.Events.Event(n, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", n.Name)
	}
	if a.SetTaints {
		base := changed.DeepCopy()
		changed.Spec.Taints = a.Taints
		err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if err != nil {
			return engine.Result{}, err
		}
	}
	if a.PodsNotReady {
		if err := r.unready(ctx, n.Name, now); err != nil {
			return engine.Result{}, err
		}
	}
	return engine.Result{RequeueAfter: a.Again}, nil
}

func (r *reconciler) unready(ctx context.Context, node string, now time.Time) error {
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, "", podstate.NodeIndex, node); err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !podstate.Ready(p) {
			continue
		}
		c := *podstate.Condition(p, corev1.PodReady)
		c.Status = corev1.ConditionFalse
		next := p.DeepCopy()
		next.Status.Conditions, _ = podstate.WithCondition(p.Status.Conditions, c, now)
		if err := r.Client.Status().Update(ctx, next); client.IgnoreNotFound(err) != nil {
			return err
		}
		r.Events.Event(p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return nil
}
