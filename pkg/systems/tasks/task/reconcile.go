// Package task runs tasks. Each attempt of each index is one pod, whose end is recorded in the task's status before the
// pod is deleted. Its invariants hold even if the process is killed at any time: an attempt has at most one pod, whose
// end is recorded once; an attempt follows only the pod it began with; a finished task does not change.
package task

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	cc "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/heartbeat"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

var kind = tasks.GroupVersion.WithKind("Task")

const (
	podIndex   = "tasks.coracle.dev.pods"
	afterIndex = "tasks.coracle.dev.after"
)

// A request for orphan plus a pod's name removes the finalizer of a pod without a task. No task can have such a name.
const orphan = "pods/"

// A request for logs plus "UID/NODE" removes the logs of a deleted task from a node.
const logs = "logs/"

// New declares the reconciler. patience is how long nodes may be silent; 0 means tasks.DefaultPatience. forget asks a
// node to remove the logs of a deleted task; it may be nil.
func New(patience time.Duration,
	forget func(ctx context.Context, node, namespace string, task types.UID) error) *engine.Reconciler {
	patience = cmp.Or(patience, tasks.DefaultPatience)
	var heard *heartbeat.Record
	quotas, targeting := &waiting{}, &waiting{}
	metrics := newMetrics()
	return &engine.Reconciler{
		Name: "task", Workers: 8, Metrics: metrics,
		Watches: []engine.Watch{
			{Object: &tasks.Task{}, Event: taskChanged},
			{
				Object: &corev1.ResourceQuota{},
				Event: func(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
					return quotas.freed(was, is)
				},
			},
			{Object: &corev1.Pod{}, Event: podChanged},
			{Object: &corev1.Node{}, Event: func(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
				heard.Node(was, is, env.Now())
				return append(tasksOf(ctx, env, was, is), targeting.nodeChanged(was, is)...)
			}},
			{
				Object: &coordinationv1.Lease{},
				Event: func(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
					heard.Lease(was, is, env.Now())
					return nil // attempts are reconciled again when their node's patience ends
				},
			},
		},
		Writes: []engine.Write{
			{Object: &tasks.Task{}, Parts: []engine.Part{engine.Status, engine.Delete}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Finalizers}},
		},
		Indexes: []engine.Index{
			podstate.ByNode(), {Object: &corev1.Pod{}, Name: podIndex, Values: func(o client.Object) []string {
				if ref := owner(o); ref != nil {
					return []string{ref.Name}
				}
				return nil
			}},
			{Object: &tasks.Task{}, Name: afterIndex, Values: func(o client.Object) (names []string) {
				for _, a := range o.(*tasks.Task).Spec.After {
					names = append(names, a.Name)
				}
				return names
			}},
		},
		New: func(env engine.Env) engine.Func {
			heard = &heartbeat.Record{}
			return (&reconciler{
				env, heard, patience, forget, &pace{at: map[types.NamespacedName]progress{}}, quotas, targeting, metrics,
			}).reconcile
		},
	}
}

// owner returns the reference to the task that controls o, or nil.
func owner(o client.Object) *metav1.OwnerReference {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil || ref.Kind != kind.Kind {
		return nil
	}
	if group, _, _ := strings.Cut(ref.APIVersion, "/"); group != kind.Group {
		return nil
	}
	return ref
}

func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, tasks.FinalizerRecorded) }

// taskChanged maps a task to itself, unless nothing is left to do: it has ended and does not expire. A task that begins
// to exist, ends or is deleted is mapped to the tasks that wait for it as well.
func taskChanged(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	t, ok := is.(*tasks.Task)
	if !ok {
		return append(append(logsOf(was), engine.RequestFor(was.GetNamespace(), was.GetName())), tasksAfter(ctx, env, was)...)
	}
	var list []engine.Request
	before, _ := was.(*tasks.Task)
	if before == nil || before.Status.Phase.Ended() != t.Status.Phase.Ended() {
		list = tasksAfter(ctx, env, t)
	}
	if t.Status.Phase.Ended() && t.Spec.TTLSecondsAfterFinished == nil && t.DeletionTimestamp == nil {
		return list
	}
	return append(list, engine.RequestFor(t.Namespace, t.Name))
}

// podChanged maps a pod to its task, or to itself if it has lost its task.
func podChanged(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Pod)
	after, _ := is.(*corev1.Pod)
	if after == nil {
		if ref := owner(before); ref != nil {
			return []engine.Request{engine.RequestFor(before.Namespace, ref.Name)}
		}
		return nil
	}
	ref := owner(after)
	if ref == nil {
		if tracked(after) {
			return []engine.Request{engine.RequestFor(after.Namespace, orphan+after.Name)}
		}
		return nil
	}
	if before != nil && !matters(before, after) {
		return nil
	}
	return []engine.Request{engine.RequestFor(after.Namespace, ref.Name)}
}

// tasksOf maps a deleted node to the tasks of its pods.
func tasksOf(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if is != nil {
		return nil
	}
	var pods corev1.PodList
	if err := env.ByIndex(ctx, &pods, "", podstate.NodeIndex, was.GetName()); err != nil {
		env.Log.Error("could not list the pods of a deleted node", "node", was.GetName(), "error", err)
		return nil
	}
	var out []engine.Request
	for i := range pods.Items {
		if ref := owner(&pods.Items[i]); ref != nil {
			out = append(out, engine.RequestFor(pods.Items[i].Namespace, ref.Name))
		}
	}
	return out
}

func matters(was, is *corev1.Pod) bool {
	return was.Spec.NodeName != is.Spec.NodeName || was.Status.Phase != is.Status.Phase ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!equality.Semantic.DeepEqual(was.DeletionGracePeriodSeconds, is.DeletionGracePeriodSeconds) ||
		!equality.Semantic.DeepEqual(was.Status.ContainerStatuses, is.Status.ContainerStatuses) ||
		is.Spec.NodeName == "" && !equality.Semantic.DeepEqual(was.Status.Conditions, is.Status.Conditions) ||
		!equality.Semantic.DeepEqual(was.OwnerReferences, is.OwnerReferences) || tracked(was) != tracked(is)
}

type reconciler struct {
	engine.Env
	heard    *heartbeat.Record
	patience time.Duration
	forget   func(ctx context.Context, node, namespace string, task types.UID) error
	pace     *pace
	// quotas are the tasks that a quota may have refused a pod, targeting those that no node matches.
	quotas, targeting *waiting
	metrics           *metrics
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	if at, ok := strings.CutPrefix(req.Name, logs); ok {
		return engine.Result{}, r.forgetLogs(ctx, req.Namespace, at)
	}
	if name, ok := strings.CutPrefix(req.Name, orphan); ok {
		return engine.Result{}, r.adrift(ctx, client.ObjectKey{Namespace: req.Namespace, Name: name})
	}
	var t tasks.Task
	if err := r.Cache.Get(ctx, req.NamespacedName, &t); client.IgnoreNotFound(err) != nil {
		return engine.Result{}, err
	}
	var list corev1.PodList
	if err := r.ByIndex(ctx, &list, req.Namespace, podIndex, req.Name); err != nil {
		return engine.Result{}, err
	}
	o := Observed{
		Task: &t, Heard: map[string]Heartbeat{}, Rejected: map[string]string{}, Deleted: map[string]bool{},
	}
	var others []*corev1.Pod // pods of a deleted task with the same name
	for i := range list.Items {
		p := &list.Items[i]
		if t.UID == "" || owner(p).UID != t.UID || !named(&t, p) {
			others = append(others, p)
			continue
		}
		o.Pods = append(o.Pods, p)
	}
	if t.UID == "" {
		r.pace.forget(req.NamespacedName)
		r.forgetWaiting(req.NamespacedName)
	}
	if err := r.release(ctx, others); err != nil || t.UID == "" {
		return engine.Result{}, err
	}
	next, err := r.hear(ctx, &o)
	if err != nil {
		return engine.Result{}, err
	}
	if err := r.before(ctx, &o); err != nil {
		return engine.Result{}, err
	}
	a := Plan(o, r.Now())
	if len(a.Create) > 0 {
		if err := r.create(ctx, &o, a.Create); err != nil {
			return engine.Result{}, err
		}
		a = Plan(o, r.Now())
	}
	if !equality.Semantic.DeepEqual(a.Status, t.Status) {
		if wait := r.pace.hold(req.NamespacedName, &t.Status, &a.Status, r.Now()); wait > 0 {
			return engine.Result{RequeueAfter: wait}, nil // the next Plan yields the same status or a later one
		}
	}
	if o.Quota != "" && !strings.Contains(t.Status.Error, quotaExceeded) {
		r.Events.Event(&t, corev1.EventTypeWarning, "QuotaExceeded", "Waits for a quota: %s", o.Quota)
	}
	if err := r.write(ctx, &t, a.Status); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.release(ctx, a.Release); err != nil {
		return engine.Result{}, err
	}
	if a.Expired && len(tasksAfter(ctx, r.Env, &t)) > 0 {
		return engine.Result{RequeueAfter: settle}, nil // the tasks after it record its end, or end themselves
	}
	if a.Expired {
		// A conflict means that the task changed, for example its ttlSecondsAfterFinished. It is reconciled again.
		err := r.Client.Delete(ctx, &t, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion},
			client.PropagationPolicy(metav1.DeletePropagationBackground))
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if len(o.Rejected) > 0 {
		a.Again = time.Nanosecond // there may be retries without a pause
	}
	if a.Again > 0 && next > 0 {
		a.Again = min(a.Again, next)
	}
	return engine.Result{RequeueAfter: a.Again}, nil
}

// hear records the last heartbeat of each pod's node. next is when to look again, 0 for never.
func (r *reconciler) hear(ctx context.Context, o *Observed) (next time.Duration, err error) {
	for _, p := range o.Pods {
		name := p.Spec.NodeName
		if a := o.Task.Status.Array; name == "" && a != nil {
			if i, _ := of(p); i < len(a.Targets) {
				err := r.Cache.Get(ctx, client.ObjectKey{Name: a.Targets[i]}, &corev1.Node{})
				if client.IgnoreNotFound(err) != nil {
					return 0, err
				}
				o.Deleted[a.Targets[i]] = err != nil
			}
		}
		if _, known := o.Heard[name]; known || name == "" {
			continue
		}
		var n corev1.Node
		if err := r.Cache.Get(ctx, client.ObjectKey{Name: name}, &n); err == nil {
			patience := tasks.Patience(&n, r.patience)
			since, again := r.heard.Silent(name, r.Now(), patience)
			o.Heard[name] = Heartbeat{At: since, Patience: patience}
			if next == 0 || again > 0 && again < next {
				next = again
			}
		} else if !apierrors.IsNotFound(err) {
			return 0, err
		}
	}
	return next, nil
}

// create creates the pods of attempts, and adds to o the pods or the reasons for their rejection. It doubles the number
// of concurrent requests, as upstream's job controller does, and stops at the first pod that a quota refuses.
func (r *reconciler) create(ctx context.Context, o *Observed, attempts []tasks.TaskAttempt) error {
	name := client.ObjectKeyFromObject(o.Task)
	r.quotas.add(name) // before the request, so that no change of a quota is missed
	for n := 1; len(attempts) > 0 && o.Quota == ""; n *= 2 {
		now := attempts[:min(n, len(attempts))]
		if err := r.createBatch(ctx, o, now); err != nil {
			return err
		}
		attempts = attempts[len(now):]
	}
	if o.Quota == "" {
		r.quotas.remove(name)
	}
	return nil
}

func (r *reconciler) createBatch(ctx context.Context, o *Observed, attempts []tasks.TaskAttempt) error {
	var mu sync.Mutex
	return engine.Parallel(len(attempts), func(i int) error {
		p := tasks.Pod(o.Task, &attempts[i])
		err := r.Client.Create(ctx, p)
		if apierrors.IsAlreadyExists(err) {
			there := &corev1.Pod{}
			if err := r.Cache.Get(ctx, client.ObjectKeyFromObject(p), there); err != nil {
				return err
			}
			if ref := owner(there); ref != nil && ref.UID == o.Task.UID {
				p, err = there, nil
			}
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			o.Pods = append(o.Pods, p)
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // the task will be deleted as well
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), quotaExceeded):
			o.Quota = err.Error()
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsAlreadyExists(err):
			o.Rejected[p.Name] = err.Error()
		default:
			return err
		}
		return nil
	})
}

func (r *reconciler) write(ctx context.Context, t *tasks.Task, s tasks.TaskStatus) error {
	if equality.Semantic.DeepEqual(s, t.Status) {
		return nil
	}
	next := t.DeepCopy()
	next.Status = s
	if err := r.Client.Status().Update(ctx, next); err != nil {
		return err
	}
	if s.Phase.Ended() {
		r.forgetWaiting(client.ObjectKeyFromObject(t))
	}
	if s.EndedAttempts > t.Status.EndedAttempts {
		r.ended(t, s.Attempts)
	}
	*t = *next
	return nil
}

// ended counts the attempts that have ended since the status of t, and reports the failed ones.
func (r *reconciler) ended(t *tasks.Task, attempts []tasks.TaskAttempt) {
	for i := range attempts {
		a := &attempts[i]
		if !a.Phase.Ended() || slices.ContainsFunc(t.Status.Attempts, func(b tasks.TaskAttempt) bool {
			return b.Phase.Ended() && b.PodUID == a.PodUID && b.Number == a.Number && index(&b) == index(a)
		}) {
			continue
		}
		r.metrics.ended(a)
		if a.Phase != tasks.TaskFailed {
			continue
		}
		of := ""
		if a.Index != nil {
			of = fmt.Sprintf(" of index %d", *a.Index)
		}
		r.Events.Event(t, corev1.EventTypeWarning, "AttemptFailed", "Attempt %d%s failed: %s", a.Number, of, a.Message)
	}
}

// release deletes pods. From pods that are being deleted already it removes the finalizer, since other clients delete
// without removing it.
func (r *reconciler) release(ctx context.Context, pods []*corev1.Pod) error {
	return engine.Parallel(len(pods), func(i int) error {
		p := pods[i]
		if p.DeletionTimestamp != nil {
			return r.untrack(ctx, p)
		}
		err := r.Client.Delete(ctx, p, engine.Preconditions(p), cc.WithoutFinalizer(tasks.FinalizerRecorded))
		if apierrors.IsConflict(err) { // another pod has the name now
			return nil
		}
		return client.IgnoreNotFound(err)
	})
}

func (r *reconciler) untrack(ctx context.Context, p *corev1.Pod) error {
	if !tracked(p) {
		return nil
	}
	// An update costs the server less than a patch, but conflicts if another client has written the pod.
	next := p.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == tasks.FinalizerRecorded })
	if err := r.Client.Update(ctx, next); !apierrors.IsConflict(err) {
		return client.IgnoreNotFound(err)
	}
	patch := `{"metadata":{"uid":"` + string(p.UID) + `","$deleteFromPrimitiveList/finalizers":["` +
		tasks.FinalizerRecorded + `"]}}`
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	err := r.Client.Patch(ctx, o, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	if apierrors.IsConflict(err) { // another pod has the name now
		return nil
	}
	return client.IgnoreNotFound(err)
}

// adrift removes the finalizer of a pod that has lost its task.
func (r *reconciler) adrift(ctx context.Context, key client.ObjectKey) error {
	var p corev1.Pod
	if err := r.Cache.Get(ctx, key, &p); err != nil {
		return client.IgnoreNotFound(err)
	}
	if metav1.GetControllerOfNoCopy(&p) != nil {
		return nil
	}
	return r.untrack(ctx, &p)
}
