package controller

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

func newCurrent(pool *target.Pool) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "kontrolwatcher", Account: "currentstate-controller", When: &kontrol.Resource{}, Workers: 16,
		Watches: []engine.Watch{
			{Object: &kontrol.Resource{}, Map: pairsOfResource, Changed: desiredChanged},
			{Object: &kontrol.Cluster{}, Map: pairsOfCluster, Changed: placeChanged},
			{Object: &kontrol.AppliedState{}},
			{Object: &kontrol.CurrentState{}},
		},
		Writes: []engine.Write{
			{Object: &kontrol.CurrentState{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec}},
		},
		Indexes: appliedIndexes(),
		New: func(env engine.Env) engine.Func {
			hub := watch.New(pool, env.Go, func(p watch.Pair) { env.Enqueue(pairRequest(p.Resource, p.Cluster), 0) })
			pool.Notify("watcher", hub.Reached)
			return (&current{env, hub, maphash.MakeSeed()}).reconcile
		},
	}
}

type current struct {
	engine.Env
	hub  *watch.Hub
	seed maphash.Seed // for basis
}

func (r *current) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	pair := pairOf(req)
	res, cluster, applied, err := objectsOf(ctx, r.Cache, pair)
	if err != nil {
		return engine.Result{}, err
	}
	was, err := engine.Find[kontrol.CurrentState](ctx, r.Cache, "", req.Name)
	if err != nil {
		return engine.Result{}, err
	}
	if res == nil || cluster == nil ||
		applied == nil && (res.DeletionTimestamp != nil || !targets(res, pair.Cluster, cluster)) {
		r.hub.Drop(pair)
		if was != nil {
			return engine.Result{}, engine.Remove(ctx, r.Client, was)
		}
		return engine.Result{}, nil
	}
	if !kontrol.IsAccepted(res) && res.DeletionTimestamp == nil {
		return engine.Result{}, nil
	}
	r.hub.Want(pair, kontrol.TargetOf(res))
	var a *kontrol.Applied
	if applied != nil && applied.State.ResourceUID == string(res.UID) {
		a = &applied.State
	}
	seen := r.hub.Look(pair)
	if seen.Recorded != 0 && seen.Reason == "" {
		if was != nil && seen.Recorded == basis(r.seed, res, a, was) {
			return engine.Result{}, nil
		}
		if left := underWay(a, was, r.Now()); left > 0 {
			return engine.Result{RequeueAfter: left}, nil
		}
		if err := r.hub.Load(ctx, pair); err != nil {
			return engine.Result{}, client.IgnoreNotFound(quiet(err))
		}
		if seen = r.hub.Look(pair); seen.Recorded != 0 && seen.Reason == "" {
			return engine.Result{RequeueAfter: time.Second}, nil
		}
	}
	if !seen.Known && seen.Reason == "" {
		return engine.Result{}, nil // the watcher wakes this pair
	}
	again, err := r.record(ctx, pair, res, a, was, seen)
	return engine.Result{RequeueAfter: again}, err
}

// quiet drops ErrUnreachable: the cluster's watches wake the pair once it answers.
func quiet(err error) error {
	if errors.Is(err, watch.ErrUnreachable) {
		return nil
	}
	return err
}

// record writes what was seen. It returns when to look again; 0 for never.
func (r *current) record(ctx context.Context, pair watch.Pair, res *kontrol.Resource, a *kontrol.Applied,
	was *kontrol.CurrentState, seen watch.Seen) (time.Duration, error) {
	var before *kontrol.Current
	if was != nil && was.State.ResourceUID == string(res.UID) {
		before = &was.State
	}
	if was == nil && seen.Object == nil && seen.Reason == "" && (a == nil || a.Generation == 0) {
		return 0, nil // nothing was applied yet
	}
	now := r.Now()
	next := PlanCurrent(res, pair.Cluster, a, before, seen, now)
	switch {
	case was == nil:
		was = &kontrol.CurrentState{
			ObjectMeta: metav1.ObjectMeta{Name: kontrol.StateName(pair.Resource, pair.Cluster)}, State: next,
		}
		if err := r.Client.Create(ctx, was); err != nil {
			return 0, err
		}
		tellCurrent(r.Events, res, nil, &next)
	case !equality.Semantic.DeepEqual(next, was.State):
		changed := *was
		changed.State = next
		if err := r.Client.Update(ctx, &changed); err != nil {
			return 0, client.IgnoreNotFound(err)
		}
		tellCurrent(r.Events, res, before, &next)
		was = &changed
	case seen.Object != nil && seen.Reason == "" && seen.Object.GetResourceVersion() != next.ResourceVersion:
		return max(time.Nanosecond, next.Time.Add(versionPause).Sub(now)), nil
	}
	if seen.Object != nil && seen.Reason == "" && a != nil && next.Generation == a.Generation {
		r.hub.Recorded(pair, seen.Object.GetResourceVersion(), basis(r.seed, res, a, was))
	}
	return 0, nil
}

// versionPause is how long a change of the resourceVersion alone, such as by a new status of the object, waits after
// the last record, so that a busy object costs one write a second.
const versionPause = time.Second

// loadAfter is how long to wait for the watch to show an applied object before reading it.
const loadAfter = 10 * time.Second

// underWay returns how long to wait until the watch shows what was applied since the last record; 0 for no wait.
func underWay(a *kontrol.Applied, was *kontrol.CurrentState, now time.Time) time.Duration {
	if a == nil || was == nil || a.AppliedAt == nil || a.Generation == was.State.Generation {
		return 0
	}
	return a.AppliedAt.Add(loadAfter).Sub(now)
}

// basis is a hash of all inputs of a record except the object on the cluster: while hash and object stay the same,
// the record is current. It is never 0.
func basis(seed maphash.Seed, r *kontrol.Resource, a *kontrol.Applied, recorded *kontrol.CurrentState) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	add := func(texts ...string) {
		for _, t := range texts {
			maphash.WriteComparable(&h, len(t))
			_, _ = h.WriteString(t)
		}
	}
	add(string(r.UID), string(r.Spec.Mode), recorded.ResourceVersion)
	if i := r.Spec.Ignore; i != nil {
		maphash.WriteComparable(&h, [2]int{len(i.Fields), len(i.Managers)})
		add(i.Fields...)
		add(i.Managers...)
	}
	if a != nil {
		maphash.WriteComparable(&h, [2]int64{a.Generation, a.Revision})
		add(string(a.Object.Raw), string(a.Fields.Raw))
	}
	return h.Sum64() | 1
}

// PlanCurrent returns the record of a Resource's object on a cluster, or was if nothing relevant changed. It is
// pure and does not change its arguments.
func PlanCurrent(r *kontrol.Resource, cluster string, a *kontrol.Applied, was *kontrol.Current, seen watch.Seen,
	now time.Time) kontrol.Current {
	next := kontrol.Current{Subject: subject(r, cluster)}
	switch {
	case seen.Reason != "":
		if was != nil {
			next = *was
			next.Drift = slices.Clone(was.Drift)
		}
		next.Reason, next.Error = seen.Reason, seen.Error
	case seen.Object == nil:
		next.Health = kontrol.HealthMissing
		if a != nil && a.Generation > 0 && was != nil && (was.Present && was.Generation == a.Generation || removed(was)) {
			next.Drift, next.DriftCount = []kontrol.Drift{{Type: kontrol.DriftRemoved}}, 1
		}
	default:
		present(&next, r, a, was, seen)
	}
	firstSeen(&next, was, now)
	if was != nil {
		if object.Same(next.Object.Raw, was.Object.Raw) {
			next.Object = was.Object
		}
		next.Time = was.Time
		version := next.ResourceVersion
		next.ResourceVersion = was.ResourceVersion
		recent := was.Time != nil && now.Before(was.Time.Add(versionPause))
		if equality.Semantic.DeepEqual(next, *was) && (version == was.ResourceVersion || recent) {
			return *was
		}
		next.ResourceVersion = version
	}
	next.Time = new(metav1.NewMicroTime(now))
	return next
}

func removed(c *kontrol.Current) bool { return len(c.Drift) == 1 && c.Drift[0].Path == "" }

var generationPath = fieldpath.MakePathOrDie("metadata", "annotations", kontrol.AnnotationGeneration)

func present(next *kontrol.Current, r *kontrol.Resource, a *kontrol.Applied, was *kontrol.Current, seen watch.Seen) {
	o := seen.Object
	next.Present, next.UID, next.ResourceVersion = true, string(o.GetUID()), o.GetResourceVersion()
	next.Object = runtime.RawExtension{Raw: object.JSON(object.Record(o.Object))}
	if a != nil && bytes.Equal(next.Object.Raw, a.Object.Raw) {
		next.Object = a.Object // share the memory
	}
	next.Health, next.HealthMessage = object.HealthOf(o)
	id, generation, revision := object.IDs(o)
	if id == r.Status.ID {
		next.Generation, next.Revision = generation, revision
	}
	if a == nil || a.Generation == 0 {
		return
	}
	// An apply whose result is not recorded yet is not drift, unless another client wrote the annotation.
	managed, ignored := o.GetManagedFields(), object.NewIgnored(r.Spec.Ignore)
	if generation != a.Generation {
		if owned, _ := object.Owned(managed); owned.Has(generationPath) {
			next.Drift = added(was)
			return
		}
	}
	if object.Untouched(managed, a.Fields.Raw, ignored) {
		return
	}
	changed, more := object.Drifted(o, object.Parse(a.Object.Raw), object.Fields(a.Fields.Raw), ignored)
	count := len(changed)
	if r.Spec.Mode == kontrol.ModeEnforce {
		count += len(more)
	}
	next.DriftCount = int32(count)
	for _, c := range append(changed, more...) {
		if len(next.Drift) == kontrol.MaxDrift {
			break
		}
		c.Path = nil
		d := c.Drift
		d.Path = bounded.Text(d.Path, kontrol.MaxError)
		d.Manager = bounded.Text(strings.TrimSpace(d.Manager), kontrol.MaxValue)
		next.Drift = append(next.Drift, d)
	}
}

// added returns the recorded drift in extra fields. It is kept during an apply, so that it keeps its first-seen
// time; the comparison follows once the apply is recorded.
func added(was *kontrol.Current) []kontrol.Drift {
	if was == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(was.Drift), func(d kontrol.Drift) bool { return d.Type != kontrol.DriftAdded })
}

// firstSeen sets when each drift was first seen, from the previous record if that has it.
func firstSeen(next, was *kontrol.Current, now time.Time) {
	for i := range next.Drift {
		d := &next.Drift[i]
		d.FirstSeen = metav1.NewMicroTime(now)
		if was == nil {
			continue
		}
		for _, o := range was.Drift {
			if o.Path == d.Path && o.Type == d.Type {
				d.FirstSeen = o.FirstSeen
			}
		}
	}
}
