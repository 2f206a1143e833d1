package controller

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// After a failed attempt the pause grows from failFirst to failUsual, about the interval of the resync. Polling is
// needed: no event reports that a missing object, such as a namespace, was created. If many pairs have failed, as
// on a cluster that refuses everything, the pause grows by failShare for each pair, up to failMost.
const (
	failFirst = time.Second
	failUsual = resync
	failShare = 10 * time.Millisecond
	failMost  = 2 * time.Minute
	// appliers is how many pairs are reconciled at the same time. Most of them wait for a cluster or for a write.
	appliers = 96
	// settle delays and so batches the reconciliation of waiting Resources after a change on their cluster.
	settle = 20 * time.Millisecond
)

func newApplied(pool *target.Pool) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "kontrol", Account: Account, When: &kontrol.Resource{}, Workers: appliers,
		Watches: []engine.Watch{
			{Object: &kontrol.Resource{}, Map: pairsOfObject, Changed: desiredChanged},
			{Object: &kontrol.Cluster{}, Map: pairsOfCluster, Changed: clusterChanged},
			{Object: &kontrol.AppliedState{}, Map: pairOfState, Changed: unsettled},
			{Object: &kontrol.CurrentState{}, Map: pairOfState},
		},
		Writes: []engine.Write{
			{Object: &kontrol.AppliedState{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec}},
		},
		Indexes: append(resourceIndexes(), appliedIndexes()...),
		New: func(env engine.Env) engine.Func {
			r := &applied{Env: env, pool: pool, began: env.Now(), tries: map[watch.Pair]Tries{}, held: newHeld()}
			pool.Notify("reconciler", r.reached)
			env.Enqueue(engine.Request{}, resync)
			return r.reconcile
		},
	}
}

// unsettled reports whether a change of an AppliedState needs a reconciliation. A successful apply does not: the
// object on the cluster changes too, and its CurrentState wakes the Resources that wait.
func unsettled(was, is client.Object) bool {
	a, b := &was.(*kontrol.AppliedState).State, &is.(*kontrol.AppliedState).State
	failed := a.Status == kontrol.ApplyFailed || a.Status == kontrol.ApplyConflict
	return failed || b.Status != kontrol.ApplyApplied || b.Generation < a.Generation || a.ResourceUID != b.ResourceUID
}

// pairsOfObject maps a Resource to its pairs, and to the pairs of other Resources for the same object.
func pairsOfObject(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	out := pairsOfResource(ctx, env, o)
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
	tries map[watch.Pair]Tries
	held  held
}

func (r *applied) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	if req == (engine.Request{}) {
		return r.sweep(ctx)
	}
	pair := pairOf(req)
	t := r.pool.Get(pair.Cluster)
	if t != nil {
		defer t.Next()
	}
	res, err := get[kontrol.Resource](ctx, r.Cache, pair.Resource)
	if err != nil {
		return engine.Result{}, err
	}
	c, err := get[kontrol.Cluster](ctx, r.Cache, pair.Cluster)
	if err != nil {
		return engine.Result{}, err
	}
	a, err := get[kontrol.AppliedState](ctx, r.Cache, kontrol.StateName(pair.Resource, pair.Cluster))
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
		switch on := o.WaitsOn; {
		case step.Status != kontrol.ApplyWaiting:
			r.hold(pair, "")
		case on == "":
			r.hold(pair, onCluster)
		default:
			r.hold(pair, on)
		}
		if step.Status == "" {
			if step.Again == 0 && a != nil && o.Waits == "" {
				r.kick(pair.Cluster, pair.Resource)
				if len(provided(res)) > 0 {
					r.kick(pair.Cluster, onKind)
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
	cur, err := get[kontrol.CurrentState](ctx, r.Cache, kontrol.StateName(res.Name, c.Name))
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
		theirs, err := get[kontrol.AppliedState](ctx, r.Cache, kontrol.StateName(s.Name, c.Name))
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
		r.hold(pair, onCluster)
		var wait time.Duration
		switch {
		case lost.Asked:
			wait = r.failed(pair, o.Resource.Generation, outage, o.Current, r.Now())
		case r.ready(pair.Cluster): // it recovered before the call of hold: no wake-up comes
			wait = settle
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
		failure := explain(err)
		wait := r.failed(pair, o.Resource.Generation, outage, o.Current, r.Now())
		if r.hold(pair, ""); failure.Status == kontrol.ApplyWaiting {
			r.hold(pair, onKind)
		}
		return engine.Result{RequeueAfter: wait}, r.record(ctx, o.Resource, pair, a, failure)
	}
	r.succeeded(pair, o.Resource.Generation, step.Correct)
	r.hold(pair, "")
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
	t := r.tries[p]
	if t.Generation != generation {
		t.Failures = 0
	}
	most := min(max(failUsual, time.Duration(len(r.tries))*failShare), failMost)
	wait := min(failFirst<<min(t.Failures, 10), most)
	wait = wait/2 + rand.N(wait)
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

func (r *applied) ready(cluster string) bool {
	t := r.pool.Get(cluster)
	return t != nil && t.Status().Ready
}

// reached wakes the pairs that wait for a cluster once it is ready. After an outage it also forgets the failures
// from before, so that they are retried at once. One lost request is not an outage, and errors about an object's
// content occur again.
func (r *applied) reached(cluster string) {
	t := r.pool.Get(cluster)
	if t == nil {
		return
	}
	s := t.Status()
	if !s.Ready {
		return
	}
	r.mu.Lock()
	waiting := append(r.held.all(cluster), forgive(r.tries, cluster, s.Outage)...)
	r.mu.Unlock()
	r.wake(waiting)
}

// forgive resets the failures on a cluster from before its last outage, and returns their pairs. The counts of
// drift corrections remain.
func forgive(tries map[watch.Pair]Tries, cluster string, outage uint64) (list []watch.Pair) {
	for p, t := range tries {
		if p.Cluster == cluster && t.Failures > 0 && t.Outage != outage {
			t.Failures, t.Next = 0, time.Time{}
			tries[p] = t
			list = append(list, p)
		}
	}
	return list
}

// sweep enqueues all pairs that are not applied in their current generation, in case an event was missed.
func (r *applied) sweep(ctx context.Context) (engine.Result, error) {
	var all kontrol.ResourceList
	if err := r.Cache.List(ctx, &all); err != nil {
		return engine.Result{}, err
	}
	for i := range all.Items {
		res := &all.Items[i]
		names, err := clustersOf(ctx, r.Cache, res)
		if err != nil {
			return engine.Result{}, err
		}
		for _, n := range names {
			a, err := get[kontrol.AppliedState](ctx, r.Cache, kontrol.StateName(res.Name, n))
			if err != nil {
				return engine.Result{}, err
			}
			if a == nil || a.State.Generation != res.Generation || a.State.Status != kontrol.ApplyApplied ||
				res.DeletionTimestamp != nil {
				r.Enqueue(pairRequest(res.Name, n), 0)
			}
		}
	}
	r.forget(&all)
	return engine.Result{RequeueAfter: resync}, nil
}

// forget drops the retry state of Resources that no longer exist.
func (r *applied) forget(all *kontrol.ResourceList) {
	exists := make(map[string]bool, len(all.Items))
	for i := range all.Items {
		exists[all.Items[i].Name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.tries {
		if !exists[p.Resource] {
			delete(r.tries, p)
		}
	}
	r.held.forget(func(p watch.Pair) bool { return exists[p.Resource] })
}
