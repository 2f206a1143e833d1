// Package externalworker sends pods to the external workers they are scheduled to, and marks workers without
// heartbeats offline.
//
// An external worker is a Node without an agent, which registered with the REST API (pkg/systems/rest) and serves
// Podling's worker API. Against a crash in between, a pod is announced in its status before it is sent, and the worker
// is asked whether it has the pod before it is sent again, so that no container runs twice. The worker reports to the
// REST API, which writes the pod's status.
//
// Its invariants: requests are only sent to the address that a worker registered from; a worker that does not answer
// delays only its own pods.
package externalworker

import (
	"context"
	"errors"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

const (
	// requestTimeout bounds a request to a worker, releaseTimeout a request that stops a pod.
	requestTimeout = 10 * time.Second
	releaseTimeout = 3 * time.Second
	// retryPause is the pause after a worker did not accept a pod.
	retryPause = 2 * time.Second
	// readPause is how often the state of a task is read from a worker that does not report it.
	readPause = time.Second
	// settlePause is the pause after a pod changed while it was given to a worker.
	settlePause = 200 * time.Millisecond
)

// New declares the reconciler. Its requests are nodes.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "externalworker", Account: "external-worker-controller", Workers: 8,
		Watches: []engine.Watch{
			{Object: &corev1.Node{}, Event: func(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
				n, ok := is.(*corev1.Node)
				if !ok || !tasks.IsExternal(n) {
					return nil
				}
				if old, ok := was.(*corev1.Node); ok && view.Online(old) == view.Online(n) {
					return nil
				}
				return []engine.Request{engine.RequestFor("", n.Name)}
			}},
			{Object: &corev1.Pod{}, Map: nodeOf, Changed: relevant},
		},
		Reads: []client.Object{&coordinationv1.Lease{}},
		Writes: []engine.Write{
			{Object: &corev1.Node{}, Parts: []engine.Part{engine.Status}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Status, engine.Delete}},
		},
		Indexes: []engine.Index{podstate.ByNode()},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{Env: env, client: view.WorkerClient(requestTimeout)}).reconcile
		},
	}
}

func nodeOf(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" {
		return nil
	}
	var n corev1.Node
	if err := env.Cache.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, &n); err != nil || !tasks.IsExternal(&n) {
		return nil
	}
	return []engine.Request{engine.RequestFor("", n.Name)}
}

// relevant reports whether a pod was scheduled or deleted. Other changes follow from this reconciler or the worker.
func relevant(was, is client.Object) bool {
	a, ok := was.(*corev1.Pod)
	b, ok2 := is.(*corev1.Pod)
	return ok && ok2 &&
		(a.Spec.NodeName != b.Spec.NodeName || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil))
}

type reconciler struct {
	engine.Env
	client *http.Client
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var node corev1.Node
	if err := r.Cache.Get(ctx, req.NamespacedName, &node); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if !tasks.IsExternal(&node) || node.DeletionTimestamp != nil {
		return engine.Result{}, nil
	}
	online, left, err := r.heartbeat(ctx, &node)
	if err != nil {
		return engine.Result{}, err
	}
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, "", podstate.NodeIndex, node.Name); err != nil {
		return engine.Result{}, err
	}
	address, err := view.Address(&node)
	if err != nil {
		return engine.Result{}, err
	}
	w := worker{client: r.client, base: "http://" + address.String(), own: metav1.NamespaceDefault}
	again, err := r.pods(ctx, w, pods.Items, online)
	if again > 0 && (left == 0 || again < left) {
		left = again
	}
	return engine.Result{RequeueAfter: left}, err
}

// pods takes the next step for the pods of a worker. If the worker does not answer once, this pass sends it no further
// requests, since their timeouts would add up. It returns when to look again; 0 means never.
func (r *reconciler) pods(ctx context.Context, w worker, pods []corev1.Pod, online bool) (time.Duration, error) {
	var soonest time.Duration
	var errs []error
	for i := range pods {
		again, err := r.pod(ctx, w, &pods[i], online)
		errs = append(errs, err)
		online = online && again != retryPause
		if again > 0 && (soonest == 0 || again < soonest) {
			soonest = again
		}
	}
	return soonest, errors.Join(errs...)
}

// heartbeat marks a worker offline that has been silent for too long. It returns whether the worker is online, and for
// how long at least.
func (r *reconciler) heartbeat(ctx context.Context, node *corev1.Node) (bool, time.Duration, error) {
	if !view.Online(node) {
		return false, 0, nil // the next heartbeat changes it
	}
	last := node.CreationTimestamp.Time
	var lease coordinationv1.Lease
	err := r.Cache.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node.Name}, &lease)
	if client.IgnoreNotFound(err) != nil {
		return false, 0, err
	}
	if err == nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(last) {
		last = lease.Spec.RenewTime.Time
	}
	patience := tasks.Patience(node, 0)
	if left := last.Add(patience).Sub(r.Now()); left > 0 {
		return true, left, nil
	}
	next := node.DeepCopy()
	view.SetReady(next, corev1.ConditionUnknown, "HeartbeatTimeout",
		"the external worker has sent no heartbeat for "+patience.String(), r.Now())
	if err := r.Client.Status().Update(ctx, next); err != nil {
		return false, 0, client.IgnoreNotFound(err)
	}
	r.Events.Event(node, corev1.EventTypeWarning, "WorkerOffline", "no heartbeat for %s", patience)
	return false, 0, nil
}

// pod takes the next steps for a pod. It returns when to look again; 0 means never.
func (r *reconciler) pod(ctx context.Context, w worker, p *corev1.Pod, online bool) (time.Duration, error) {
	for {
		switch action, why := Plan(p, online, r.Now()); action {
		case Announce:
			next, err := r.set(ctx, p, corev1.ConditionFalse, "Assigning", "")
			if err != nil {
				return 0, ignore(err)
			}
			p = next
		case Assign:
			design, err := w.assign(ctx, p)
			switch {
			case err == nil:
				reason, next := reportReason, time.Duration(0)
				if design {
					reason, next = readReason, readPause
				}
				_, err = r.set(ctx, p, corev1.ConditionTrue, reason, "")
				if apierrors.IsConflict(err) {
					return settlePause, nil // most likely the worker's first report
				}
				return next, ignore(err)
			case errors.Is(err, errRefused):
				return 0, r.fail(ctx, p, err.Error())
			}
			_, err = r.set(ctx, p, corev1.ConditionFalse, "Assigning", clip(err.Error()))
			return retryPause, ignore(err)
		case Fail:
			return 0, r.fail(ctx, p, why)
		case Read:
			return r.read(ctx, w, p)
		case Release:
			return 0, r.release(ctx, w, p, online)
		case Wait:
			return 0, nil
		}
	}
}

// read brings the status of a pod up to date with what its worker answers. A worker that has forgotten a task fails it,
// unless that was assigned a moment ago.
func (r *reconciler) read(ctx context.Context, w worker, p *corev1.Pod) (time.Duration, error) {
	state, there, err := w.read(ctx, p)
	if errors.Is(err, errRefused) {
		return 0, r.fail(ctx, p, err.Error())
	}
	if err != nil {
		r.Log.Debug("could not read a task from its external worker", "node", p.Spec.NodeName, "pod", p.Name, "error", err)
		return retryPause, nil
	}
	if !there {
		if since := r.Now().Sub(condition(p).LastTransitionTime.Time); since < assignPatience {
			return readPause, nil
		}
		return 0, r.fail(ctx, p, "the worker has no such task any more")
	}
	next := p.DeepCopy()
	if state.Status == wire.TaskPending || state.Status == wire.TaskScheduled ||
		state.Status == wire.TaskRunning && p.Status.Phase == corev1.PodRunning {
		return readPause, nil
	}
	if _, err := view.ReportTask(next, &state, r.Now()); err != nil {
		return 0, r.fail(ctx, p, "the worker's answer: "+err.Error())
	}
	if err := r.Client.Status().Update(ctx, next); err != nil {
		return settlePause, ignore(err)
	}
	return readPause, nil
}

// ignore drops errors of a pod that changed or is gone: its next event comes.
func ignore(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// maxMessage bounds messages in statuses, in bytes.
const maxMessage = 512

func clip(s string) string { return s[:min(len(s), maxMessage)] }

// set writes the condition Assigned. Its transition time stays the time of the announcement.
func (r *reconciler) set(ctx context.Context, p *corev1.Pod, status corev1.ConditionStatus,
	reason, message string) (*corev1.Pod, error) {
	next := p.DeepCopy()
	c := condition(next)
	if c == nil {
		next.Status.Conditions = append(next.Status.Conditions, corev1.PodCondition{Type: Assigned})
		c = &next.Status.Conditions[len(next.Status.Conditions)-1]
	}
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(r.Now())
	}
	c.Status, c.Reason, c.Message = status, reason, message
	err := r.Client.Status().Update(ctx, next)
	return next, err
}

func (r *reconciler) fail(ctx context.Context, p *corev1.Pod, why string) error {
	next := p.DeepCopy()
	next.Status.Phase, next.Status.Reason, next.Status.Message = corev1.PodFailed, "NotAssigned", clip(why)
	return ignore(r.Client.Status().Update(ctx, next))
}

// release removes a deleted pod, even if the worker cannot be reached.
func (r *reconciler) release(ctx context.Context, w worker, p *corev1.Pod, online bool) error {
	if online && condition(p) != nil {
		asked, cancel := context.WithTimeout(ctx, releaseTimeout)
		defer cancel()
		if err := w.release(asked, p); err != nil {
			r.Log.Warn("could not stop pod on external worker", "node", p.Spec.NodeName, "namespace", p.Namespace, "pod", p.Name,
				"error", err)
		}
	}
	now := int64(0)
	return ignore(r.Client.Delete(ctx, p, engine.Preconditions(p), &client.DeleteOptions{GracePeriodSeconds: &now}))
}
