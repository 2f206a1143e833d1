package controller

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// After a failed attempt the pause grows from failFirst to failUsual, about half a minute. Polling is
// needed: no event reports that a missing object, such as a namespace, was created. If many pairs have failed, as
// on a cluster that refuses everything, the pause grows by failShare for each pair, up to failMost.
const (
	failFirst = time.Second
	failUsual = 30 * time.Second
	failShare = 10 * time.Millisecond
	failMost  = 2 * time.Minute
	// appliers is how many pairs are reconciled at the same time. Most of them wait for a cluster or for a write.
	appliers = 96
	// wakePause delays and so batches the reconciliation of waiting Resources after a change on their cluster.
	wakePause = 20 * time.Millisecond
)

func newApplied(pool *target.Pool) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "kontrol", Account: Account, When: &kontrol.Resource{}, Workers: appliers,
		Watches: []engine.Watch{
			{Object: &kontrol.Resource{}, Map: pairsOfObject, Changed: desiredChanged},
			{Object: &kontrol.Cluster{}, Map: pairsOfCluster, Changed: clusterChanged},
			{Object: &kontrol.AppliedState{}, Changed: needsAttempt},
			{Object: &kontrol.CurrentState{}},
		},
		Writes: []engine.Write{
			{Object: &kontrol.AppliedState{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec}},
		},
		Indexes: slices.Concat(resourceIndexes(), appliedIndexes(), waitIndexes()),
		// The local cluster can be a target, and a Resource can contain any object. On another API server its
		// administrator decides what the operator may do.
		Further: []rbacv1.PolicyRule{
			{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
			{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
		},
		New: func(env engine.Env) engine.Func {
			r := &applied{Env: env, pool: pool, began: env.Now(), tries: map[watch.Pair]Tries{}}
			pool.Notify("reconciler", r.reached)
			return r.reconcile
		},
	}
}

// needsAttempt reports whether a change of an AppliedState needs a reconciliation. A successful apply does not: the
// object on the cluster changes too, and its CurrentState wakes the Resources that wait.
func needsAttempt(was, is client.Object) bool {
	a, b := &was.(*kontrol.AppliedState).State, &is.(*kontrol.AppliedState).State
	failed := a.Status == kontrol.ApplyFailed || a.Status == kontrol.ApplyConflict
	return failed || b.Status != kontrol.ApplyApplied || b.Generation < a.Generation || a.ResourceUID != b.ResourceUID
}

// pairsOfObject maps a Resource to its pairs, to the pairs that wait for it, and to the pairs of other Resources for
// the same object.
func pairsOfObject(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	out := pairsOfResource(ctx, env, o)
	var waiting kontrol.AppliedStateList
	if env.ByIndex(ctx, &waiting, "", byWaitsFor, o.GetName()) == nil {
		out = append(out, engine.Requests(waiting.Items, nil)...)
	}
	r, ok := o.(*kontrol.Resource)
	var same kontrol.ResourceList
	if !ok || env.ByIndex(ctx, &same, "", byObject, objectKey(kontrol.TargetOf(r))) != nil {
		return out
	}
	for i := range same.Items {
		if s := &same.Items[i]; s.UID != r.UID {
			out = append(out, pairsOfResource(ctx, env, s)...)
		}
	}
	return out
}

type applied struct {
	engine.Env
	pool  *target.Pool
	began time.Time

	mu    sync.Mutex
	tries map[watch.Pair]Tries // of the pairs whose last attempt failed or corrected drift
}

func (r *applied) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	pair := pairOf(req)
	t := r.pool.Get(pair.Cluster)
	if t != nil {
		defer t.Next()
	}
	res, c, a, err := objectsOf(ctx, r.Cache, pair)
	if err != nil {
		return engine.Result{}, err
	}
	if res == nil || res.DeletionTimestamp != nil || !targets(res, pair.Cluster, c) ||
		a != nil && a.State.ResourceUID != string(res.UID) {
		return r.release(ctx, pair, res, c, a)
	}
	if !kontrol.IsAccepted(res) {
		return engine.Result{}, nil // the summary reconciler accepts or refuses it
	}
	if t != nil && (a == nil || a.State.Generation != res.Generation) && t.Busy(pair.Resource, r.again(pair)) {
		return engine.Result{}, nil
	}
	o, err := r.observe(ctx, res, c, a)
	if err != nil {
		return engine.Result{}, err
	}
	step := Plan(o, r.Now())
	if !step.Apply {
		if step.Status == "" {
			if step.Again == 0 && a != nil && o.Waits == "" {
				r.wake(ctx, byWaitsFor, pair.Cluster+"/"+pair.Resource)
				if len(provided(res)) > 0 {
					r.wake(ctx, byNoKind, pair.Cluster)
				}
			}
			return engine.Result{RequeueAfter: step.Again}, nil
		}
		// While the cluster is reachable, an apply may start at any time: Attempted is recorded now, to save a
		// write.
		soon, _ := state.Reachable(c)
		return engine.Result{RequeueAfter: step.Again}, r.record(ctx, res, pair, a, kontrol.Applied{
			Status:    step.Status,
			Reason:    step.Reason,
			Error:     step.Error,
			WaitsFor:  step.WaitsFor,
			Attempted: soon && step.Status == kontrol.ApplyWaiting,
		})
	}
	if a == nil || !attempted(&a.State) {
		// Record the attempt before the object can exist. Reconcile again afterwards: once the cache shows the
		// record, it also shows whether the Resource was deleted meanwhile.
		if err := r.record(ctx, res, pair, a, kontrol.Applied{Status: kontrol.ApplyPending, Attempted: true}); err != nil {
			return engine.Result{}, err
		}
		return engine.Result{RequeueAfter: time.Nanosecond}, nil
	}
	return r.attempt(ctx, pair, o, a, step)
}

func (r *applied) observe(ctx context.Context, res *kontrol.Resource, c *kontrol.Cluster,
	a *kontrol.AppliedState) (Observed, error) {
	o := Observed{Resource: res, Cluster: c}
	if a != nil {
		o.Applied = &a.State
	}
	if c == nil {
		return o, nil
	}
	cur, err := engine.Find[kontrol.CurrentState](ctx, r.Cache, "", kontrol.StateName(res.Name, c.Name))
	if err != nil {
		return o, err
	}
	if cur != nil {
		o.Current = &cur.State
	}
	var same kontrol.ResourceList
	if err := r.ByIndex(ctx, &same, "", byObject, objectKey(kontrol.TargetOf(res))); err != nil {
		return o, err
	}
	for i := range same.Items {
		s := &same.Items[i]
		if s.UID == res.UID || !targets(s, c.Name, c) {
			continue
		}
		theirs, err := engine.Find[kontrol.AppliedState](ctx, r.Cache, "", kontrol.StateName(s.Name, c.Name))
		if err != nil {
			return o, err
		}
		if has, had := hasApplied(a, res), hasApplied(theirs, s); had && !has || had == has && first(s, res) {
			o.Other = s.Name
		}
	}
	if _, err := placement.Render(res, c); err != nil {
		o.Invalid = bounded.Text(err.Error(), kontrol.MaxError)
	}
	if a == nil || a.State.Generation != res.Generation || a.State.Variant != placement.Variant(res, c) {
		w, err := r.waits(ctx, res, c)
		if err != nil {
			return o, err
		}
		o.WaitsReason, o.Waits, o.WaitsOn = w.reason, w.text, w.on
	}
	r.mu.Lock()
	o.Tries = r.tries[watch.Pair{Resource: res.Name, Cluster: c.Name}]
	r.mu.Unlock()
	if t := r.pool.Get(c.Name); t != nil {
		o.Tries = o.Tries.after(t.Status().Outage)
	}
	return o, nil
}

func hasApplied(a *kontrol.AppliedState, r *kontrol.Resource) bool {
	return a != nil && a.State.ResourceUID == string(r.UID) && a.State.Generation > 0
}

// first reports whether Resource a was created before b. Creation times have a resolution of seconds; the UIDs
// decide a tie.
func first(a, b *kontrol.Resource) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

func (r *applied) again(pair watch.Pair) func() {
	return func() { r.Enqueue(pairRequest(pair.Resource, pair.Cluster), 0) }
}

func (r *applied) attempt(ctx context.Context, pair watch.Pair, o Observed, a *kontrol.AppliedState,
	step Step) (engine.Result, error) {
	t := r.pool.Get(pair.Cluster)
	if t == nil {
		return engine.Result{}, nil // the cluster reconciler wakes this pair once it connects
	}
	var out Answer
	outage := t.Status().Outage
	err := t.Do(ctx, pair.Resource, r.again(pair), func(ctx context.Context, c client.WithWatch) (err error) {
		out, err = Apply(ctx, c, o, step)
		return err
	})
	var lost *target.UnreachableError
	switch {
	case errors.Is(err, target.ErrBusy):
		return engine.Result{}, nil
	case ctx.Err() != nil:
		return engine.Result{}, nil
	case errors.As(err, &lost):
		// A request that was not sent waits for the probe's verdict: then the cluster is ready, or its condition says
		// that it is not, and the next change of that condition wakes the pair.
		wait := failFirst
		if lost.Asked {
			wait = r.failed(pair, o.Resource.Generation, outage, o.Current, r.Now())
		}
		if a.State.Generation == o.Resource.Generation {
			return engine.Result{RequeueAfter: wait}, nil // the Cluster's condition Ready reports it
		}
		return engine.Result{RequeueAfter: wait}, r.record(ctx, o.Resource, pair, a, kontrol.Applied{
			Status: kontrol.ApplyWaiting,
			Reason: lost.Reason,
			Error:  lost.Message,
		})
	case err != nil:
		failure := explain(err, o.Resource.Spec.Mode)
		wait := r.failed(pair, o.Resource.Generation, outage, o.Current, r.Now())
		return engine.Result{RequeueAfter: wait}, r.record(ctx, o.Resource, pair, a, failure)
	}
	r.succeeded(pair, o.Resource.Generation, step.Correct)
	at := metav1.NewMicroTime(r.Now())
	next := kontrol.Applied{
		Status: kontrol.ApplyApplied, Generation: o.Resource.Generation, Revision: *o.Resource.Spec.Revision,
		Variant: placement.Variant(o.Resource, o.Cluster), Object: out.Object, Fields: out.Fields, AppliedAt: &at,
		Corrections: a.State.Corrections, ResourceVersion: out.ResourceVersion,
	}
	if a.State.Generation != next.Generation {
		next.Corrections = 0
	}
	if step.Correct {
		next.Corrections++
	}
	return engine.Result{RequeueAfter: pendingPatience}, r.record(ctx, o.Resource, pair, a, next)
}

// attempted reports whether the object may exist on the cluster. AppliedStates of earlier versions lack the field
// Attempted, so their other fields decide.
func attempted(a *kontrol.Applied) bool {
	return a.Attempted || a.Generation > 0 || a.Status == kontrol.ApplyPending || a.Status == kontrol.ApplyApplied ||
		a.Status == kontrol.ApplyFailed ||
		a.Status == kontrol.ApplyConflict && a.Reason != kontrol.ReasonSameObject
}

// record writes the result of an attempt. If it failed, the record of the last successful apply is kept.
func (r *applied) record(ctx context.Context, res *kontrol.Resource, pair watch.Pair, was *kontrol.AppliedState,
	next kontrol.Applied) error {
	if was != nil && next.Status != kontrol.ApplyApplied {
		old := &was.State
		next.Generation, next.Revision, next.Variant, next.Object, next.Fields = old.Generation, old.Revision, old.Variant,
			old.Object, old.Fields
		next.AppliedAt, next.Corrections, next.ResourceVersion = old.AppliedAt, old.Corrections, old.ResourceVersion
	}
	next.Attempted = next.Attempted || next.Status == kontrol.ApplyApplied || was != nil && attempted(&was.State)
	next.Subject = subject(res, pair.Cluster)
	next.AttemptedGeneration = res.Generation
	next.Error = bounded.Text(next.Error, kontrol.MaxError)
	at := metav1.NewMicroTime(r.Now())
	if was == nil {
		next.Time = &at
		tellApplied(r.Events, res, nil, &next)
		return r.Client.Create(ctx, &kontrol.AppliedState{
			ObjectMeta: metav1.ObjectMeta{Name: kontrol.StateName(res.Name, pair.Cluster)}, State: next,
		})
	}
	next.Time = was.State.Time
	if equality.Semantic.DeepEqual(next, was.State) {
		return nil
	}
	next.Time = &at
	tellApplied(r.Events, res, &was.State, &next)
	changed := *was
	changed.State = next
	return client.IgnoreNotFound(r.Client.Update(ctx, &changed))
}

// failed counts a failure and returns the pause before the next attempt.
func (r *applied) failed(p watch.Pair, generation int64, outage uint64, current *kontrol.Current,
	now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tries[p].after(outage)
	if t.Generation != generation {
		t.Failures = 0
	}
	most := min(max(failUsual, time.Duration(len(r.tries))*failShare), failMost)
	wait := backoff.Jittered(backoff.Pause(failFirst, most, t.Failures+1))
	t.Generation, t.Failures, t.Last, t.Next, t.Outage, t.Seen = generation, t.Failures+
		1, now, now.Add(wait), outage, seenOf(current)
	r.tries[p] = t
	return wait
}

func (r *applied) succeeded(p watch.Pair, generation int64, corrected bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, now := r.tries[p], r.Now()
	if now.Sub(t.Corrected) > correctionWindow {
		t.Corrections = 0
	}
	if corrected {
		t.Corrections, t.Corrected = t.Corrections+1, now
	}
	t.Generation, t.Failures, t.Next = generation, 0, time.Time{}
	if t.Corrections == 0 {
		delete(r.tries, p)
		return
	}
	r.tries[p] = t
}

// reached wakes the pairs of a cluster that are not applied, once the cluster is ready.
func (r *applied) reached(cluster string) {
	if t := r.pool.Get(cluster); t == nil || !t.Status().Ready {
		return
	}
	r.wake(context.Background(), byCluster, cluster)
}

// wake reconciles the pairs with a value in an index that are not applied.
func (r *applied) wake(ctx context.Context, index, value string) {
	var list kontrol.AppliedStateList
	if err := r.ByIndex(ctx, &list, "", index, value); err != nil {
		r.Log.Warn("could not list the objects that wait", "index", index, "value", value, "error", err)
		return
	}
	for _, req := range engine.Requests(list.Items, func(a *kontrol.AppliedState) bool {
		return a.State.Status != kontrol.ApplyApplied
	}) {
		r.Enqueue(req, wakePause)
	}
}
