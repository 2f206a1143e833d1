package task

import (
	"context"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// quotaExceeded is in the error of a create that a ResourceQuota refuses. Other refusals have the same code.
const quotaExceeded = "exceeded quota: "

// waiting is a set of tasks to reconcile when an object of the cluster changes. A restart needs no record of it: each
// unfinished task is reconciled then.
type waiting struct {
	mu    sync.Mutex
	tasks map[types.NamespacedName]bool
}

func (w *waiting) add(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tasks == nil {
		w.tasks = map[types.NamespacedName]bool{}
	}
	w.tasks[name] = true
}

func (w *waiting) remove(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.tasks, name)
}

func (r *reconciler) forgetWaiting(name types.NamespacedName) {
	r.quotas.remove(name)
	r.targeting.remove(name)
}

// in removes and returns the tasks of a namespace, "" for all. A task that still waits adds itself again.
func (w *waiting) in(namespace string) (list []engine.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.tasks {
		if namespace == "" || name.Namespace == namespace {
			list = append(list, engine.RequestFor(name.Namespace, name.Name))
			delete(w.tasks, name)
		}
	}
	return list
}

// freed maps a quota whose limits or usage changed to the tasks that wait for a quota.
func (w *waiting) freed(was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.ResourceQuota)
	after, _ := is.(*corev1.ResourceQuota)
	switch {
	case before == nil:
		return nil
	case after != nil && equality.Semantic.DeepEqual(before.Spec, after.Spec) &&
		equality.Semantic.DeepEqual(before.Status, after.Status):
		return nil
	}
	return w.in(before.Namespace)
}

// nodeChanged maps a node that is new or deleted, or has other labels or taints, to the tasks that run on every node.
func (w *waiting) nodeChanged(was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	after, _ := is.(*corev1.Node)
	if after != nil && before != nil && equality.Semantic.DeepEqual(before.Labels, after.Labels) &&
		equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
		return nil
	}
	return w.in("")
}

// named reports whether a pod has the name of an attempt of the task. Others may only claim to be the task's.
func named(t *tasks.Task, p *corev1.Pod) bool {
	i, number := of(p)
	a := tasks.TaskAttempt{Number: int32(number)}
	if text, ok := p.Labels[tasks.LabelIndex]; ok {
		if text != strconv.Itoa(i) {
			return false
		}
		a.Index = new(int32(i))
	}
	return p.Name == tasks.PodName(t, &a)
}

// tasksAfter returns the tasks that still wait for t.
func tasksAfter(ctx context.Context, env engine.Env, t client.Object) (list []engine.Request) {
	var found tasks.TaskList
	if err := env.ByIndex(ctx, &found, t.GetNamespace(), afterIndex, t.GetName()); err != nil {
		env.Log.Error("could not list the tasks after a task", "task", t.GetNamespace()+"/"+t.GetName(), "error", err)
	}
	for i := range found.Items {
		n := &found.Items[i]
		if !n.Status.Phase.Ended() && n.DeletionTimestamp == nil && !slices.Contains(n.Status.After, t.GetName()) {
			list = append(list, engine.RequestFor(n.Namespace, n.Name))
		}
	}
	return list
}

// maxChain bounds the search for a cycle, in tasks.
const maxChain = 1000

// before observes what a task that has not begun waits for: the tasks before it and, for everyNode, the nodes.
func (r *reconciler) before(ctx context.Context, o *Observed) error {
	t := o.Task
	if t.Status.Phase.Ended() || t.DeletionTimestamp != nil {
		return nil
	}
	everyNode := t.Spec.Array != nil && t.Spec.Array.EveryNode
	if everyNode {
		r.targeting.add(client.ObjectKeyFromObject(t)) // before nodes are read, so that no change is missed
	}
	if len(t.Status.Attempts) > 0 {
		return nil
	}
	if len(t.Spec.After) > 0 {
		o.After = map[string]*tasks.Task{}
		if err := r.chain(ctx, o, t, t.Name, map[string]bool{t.Name: true}); err != nil {
			return err
		}
	}
	if everyNode {
		var nodes corev1.NodeList
		if err := r.Cache.List(ctx, &nodes); err != nil {
			return err
		}
		o.Targets = func() []string { return targets(t, nodes.Items) }
	}
	return nil
}

// chain observes the tasks after which t runs, and follows their own spec.after to find a cycle.
func (r *reconciler) chain(ctx context.Context, o *Observed, t *tasks.Task, path string, seen map[string]bool) error {
	for _, a := range t.Spec.After {
		to := path + " after " + a.Name
		if a.Name == o.Task.Name {
			o.Cycle = to
		}
		if seen[a.Name] || len(seen) >= maxChain {
			continue
		}
		seen[a.Name] = true
		next := &tasks.Task{}
		err := r.Cache.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: a.Name}, next)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if t == o.Task {
			o.After[a.Name] = next
		}
		if !next.Status.Phase.Ended() {
			if err := r.chain(ctx, o, next, to, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// targets returns the nodes that have the labels that the task selects and only taints that it tolerates.
func targets(t *tasks.Task, nodes []corev1.Node) (names []string) {
	selector := labels.SelectorFromSet(t.Spec.NodeSelector)
	for i := range nodes {
		n := &nodes[i]
		_, tainted := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, t.Spec.Tolerations,
			func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, true)
		if n.DeletionTimestamp == nil && selector.Matches(labels.Set(n.Labels)) && !tainted {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}
