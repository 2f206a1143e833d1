// Package podgc deletes pods that no node agent deletes: pods of missing nodes, terminating pods that have no node or
// whose node is out of service, and terminated pods beyond a threshold. Its invariant: it deletes no pod that an
// existing node could still run, unless the node is tainted as out of service.
package podgc

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// A request is a node by name, a pod by namespace and name, or terminated for all terminated pods.
var terminated = engine.RequestFor("", "*")

// trimDelay is the delay before terminated pods are counted, so that one pass covers many.
const trimDelay = 20 * time.Second

// New declares the reconciler.
func New() *engine.Reconciler {
	gone := &missing{}
	return &engine.Reconciler{
		Name: "podgc", Account: "pod-garbage-collector", Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.Node{}, Event: gone.nodes},
			{Object: &corev1.Pod{}, Event: pods},
		},
		Writes: []engine.Write{{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Delete, engine.Status}}},
		Indexes: []engine.Index{podstate.ByNode(), {
			Object: &corev1.Pod{}, Name: "status.phase", Values: func(o client.Object) []string {
				if p, ok := o.(*corev1.Pod); ok {
					return []string{string(p.Status.Phase)}
				}
				return nil
			},
		}},
		New: func(env engine.Env) engine.Func {
			gone.reset()
			return (&reconciler{Env: env, byIndex: env.ByIndex, missing: gone}).reconcile
		},
	}
}

// nodes maps a node to itself when it is deleted or goes out of service.
func (m *missing) nodes(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	now, _ := is.(*corev1.Node)
	switch {
	case now == nil:
		m.since(before.Name, env.Now())
		return []engine.Request{engine.RequestFor("", before.Name)}
	case before == nil:
		m.back(now.Name)
	}
	if abandoned(now) && (before == nil || !abandoned(before)) {
		return []engine.Request{engine.RequestFor("", now.Name)}
	}
	return nil
}

func pods(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	p, ok := is.(*corev1.Pod)
	if !ok {
		return nil
	}
	old, _ := was.(*corev1.Pod)
	c := classify(old, p)
	if c.terminated {
		env.Enqueue(terminated, trimDelay)
	}
	if c.unscheduled {
		return []engine.Request{engine.RequestFor(p.Namespace, p.Name)}
	}
	if !c.newOnNode && !c.terminating {
		return nil
	}
	var n corev1.Node
	err := env.Cache.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, &n)
	if apierrors.IsNotFound(err) || err == nil && c.terminating && abandoned(&n) {
		return []engine.Request{engine.RequestFor("", p.Spec.NodeName)}
	}
	return nil
}

// missing records the deleted nodes and when they were first missed.
type missing struct {
	mu   sync.Mutex
	gone map[string]time.Time
}

func (m *missing) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = map[string]time.Time{}
}

// since returns when a node was first missed. It records now if that is not known.
func (m *missing) since(node string, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.gone[node]
	if !ok {
		at = now
		m.gone[node] = at
	}
	return at
}

// back forgets a node that exists again or whose pods are deleted.
func (m *missing) back(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.gone, node)
}

type reconciler struct {
	engine.Env
	byIndex func(ctx context.Context, list client.ObjectList, namespace, index, value string) error
	missing *missing
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	switch {
	case req == terminated:
		return engine.Result{}, r.trim(ctx)
	case req.Namespace != "":
		p, err := engine.Find[corev1.Pod](ctx, r.Cache, req.Namespace, req.Name)
		if err != nil || p == nil || p.DeletionTimestamp == nil || p.Spec.NodeName != "" {
			return engine.Result{}, err
		}
		return engine.Result{}, r.remove(ctx, p)
	}
	return r.node(ctx, req.Name)
}

// node deletes the pods of a missing node, or the terminating pods of an out-of-service node.
func (r *reconciler) node(ctx context.Context, name string) (engine.Result, error) {
	var n corev1.Node
	err := r.Cache.Get(ctx, client.ObjectKey{Name: name}, &n)
	if client.IgnoreNotFound(err) != nil {
		return engine.Result{}, err
	}
	exists := err == nil
	if exists {
		r.missing.back(name)
		if !abandoned(&n) {
			return engine.Result{}, nil
		}
	} else {
		now := r.Now()
		if in := PlanNode(r.missing.since(name, now), now); in > 0 {
			return engine.Result{RequeueAfter: in}, nil
		}
	}
	var pods corev1.PodList
	if err := r.byIndex(ctx, &pods, "", podstate.NodeIndex, name); err != nil {
		return engine.Result{}, err
	}
	var failed []error
	for i := range pods.Items {
		switch p := &pods.Items[i]; {
		case !exists:
			failed = append(failed, r.fail(ctx, p, "PodGC: node no longer exists"))
		case p.DeletionTimestamp != nil:
			failed = append(failed, r.fail(ctx, p, ""))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return engine.Result{}, err
	}
	if !exists {
		r.missing.back(name)
	}
	return engine.Result{}, nil
}

// fail marks a pod as failed unless it has ended, with condition DisruptionTarget if why is not empty, and deletes it.
func (r *reconciler) fail(ctx context.Context, p *corev1.Pod, why string) error {
	if !podstate.Ended(p) {
		next := p.DeepCopy()
		next.Status.Phase = corev1.PodFailed
		if why != "" {
			next.Status.Conditions, _ = podstate.WithCondition(p.Status.Conditions, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: why,
				ObservedGeneration: p.Generation,
			}, r.Now())
		}
		// Patch the status, because upstream's role does not allow an update.
		if err := r.Client.Status().
			Patch(ctx, next, client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return r.remove(ctx, p)
}

func (r *reconciler) remove(ctx context.Context, p *corev1.Pod) error {
	return engine.Remove(ctx, r.Client, p, client.GracePeriodSeconds(0))
}

func (r *reconciler) trim(ctx context.Context) error {
	var all []*corev1.Pod
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		var list corev1.PodList
		if err := r.byIndex(ctx, &list, "", "status.phase", string(phase)); err != nil {
			return err
		}
		all = append(all, engine.Pointers(list.Items)...)
	}
	var failed []error
	for _, p := range PlanTerminated(all, TerminatedThreshold) {
		failed = append(failed, r.remove(ctx, p))
	}
	return errors.Join(failed...)
}
