package controller

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
)

func newSummary() *engine.Reconciler {
	resourceOf := func(o client.Object) string {
		name, _ := kontrol.SplitStateName(o.GetName())
		return name
	}
	ofState := func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
		return []engine.Request{engine.RequestFor("", resourceOf(o))}
	}
	counts := &tally{}
	return &engine.Reconciler{
		Name: "kontrolresource", Metrics: counts, Account: "resource-controller", When: &kontrol.Resource{}, Workers: 16,
		Watches: []engine.Watch{
			{
				Object: &kontrol.Resource{}, Changed: engine.SpecChanged, Batch: client.Object.GetName,
				Map: func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
					return []engine.Request{engine.RequestFor("", o.GetName())}
				},
			},
			{Object: &kontrol.AppliedState{}, Map: ofState, Batch: resourceOf},
			{Object: &kontrol.CurrentState{}, Map: ofState, Batch: resourceOf},
			{
				Object: &kontrol.Cluster{}, Changed: placeChanged,
				Map: func(ctx context.Context, env engine.Env, o client.Object) (out []engine.Request) {
					for _, req := range pairsOfCluster(ctx, env, o) {
						out = append(out, engine.RequestFor("", pairOf(req).Resource))
					}
					return out
				},
			},
		},
		Writes: []engine.Write{
			{Object: &kontrol.Resource{}, Parts: []engine.Part{engine.Status, engine.Finalizers, engine.Spec}},
		},
		Indexes: appliedIndexes(),
		New:     func(env engine.Env) engine.Func { return (&summary{env, counts}).reconcile },
	}
}

type summary struct {
	engine.Env
	counts *tally
}

func (s *summary) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	r, err := engine.Find[kontrol.Resource](ctx, s.Cache, "", req.Name)
	if r == nil || err != nil {
		if err == nil {
			s.counts.set(req.Name, nil)
		}
		return engine.Result{}, err
	}
	var states kontrol.AppliedStateList
	if r.DeletionTimestamp != nil {
		if err := s.ByIndex(ctx, &states, "", byResource, r.Name); err != nil {
			return engine.Result{}, err
		}
	}
	if r.DeletionTimestamp != nil && len(states.Items) == 0 {
		next := r.DeepCopy()
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == kontrol.FinalizerTargets })
		if len(next.Finalizers) == len(r.Finalizers) {
			return engine.Result{}, nil
		}
		return engine.Result{}, client.IgnoreNotFound(s.Client.Update(ctx, next))
	}
	was := r.Status
	refused := ""
	if r.DeletionTimestamp == nil && !kontrol.SelfAccepted(r) {
		if r, refused, err = s.accept(ctx, r); r == nil || err != nil {
			return engine.Result{}, err
		}
	}
	inputs, err := s.inputs(ctx, r)
	if err != nil {
		return engine.Result{}, err
	}
	next := *r // shallow: the history may be large
	next.Status.Conditions = slices.Clone(r.Status.Conditions)
	Summarize(&next.Status, r, inputs)
	s.count(r, inputs)
	switch {
	case r.DeletionTimestamp != nil:
		next.Status.Message = leaving(states.Items)
	case refused != "":
		outOfSync(&next.Status, refused)
	default:
		if left := passing(inputs, next.Status.State, s.Now()); left > 0 && was.State != "" && kontrol.SelfAccepted(r) {
			return engine.Result{RequeueAfter: left}, nil
		}
	}
	if equality.Semantic.DeepEqual(next.Status, was) {
		return engine.Result{}, nil
	}
	return engine.Result{}, client.IgnoreNotFound(s.Client.Status().Update(ctx, &next))
}

// count records the states for metrics. A Resource that has failed for longer than this process runs is as old as its
// conditions say.
func (s *summary) count(r *kontrol.Resource, inputs []state.Input) {
	states := make([]counted, len(inputs))
	for i, in := range inputs {
		states[i] = counted{cluster: r.Spec.ClusterName, since: s.Now()}
		states[i].state, _ = state.Of(in)
		if in.Cluster != nil {
			states[i].cluster = in.Cluster.Name
		}
		for j := range r.Status.Conditions {
			if c := &r.Status.Conditions[j]; c.Reason == string(states[i].state) && c.Status == metav1.ConditionFalse {
				states[i].since = c.LastTransitionTime.Time
			}
		}
	}
	s.counts.set(r.Name, states)
}

// passes is how long the status delays PendingApplied: the watch usually shows the object sooner, which saves a
// write.
const passes = 250 * time.Millisecond

// passing returns how long a summary should wait for the watch to show what was just applied; 0 for no wait.
func passing(inputs []state.Input, sum kontrol.State, now time.Time) (left time.Duration) {
	if sum != kontrol.StatePendingApplied {
		return 0
	}
	for _, in := range inputs {
		if in.Applied != nil && in.Applied.AppliedAt != nil {
			if d := in.Applied.AppliedAt.Add(passes).Sub(now); d <= passes { // else another server's clock is ahead
				left = max(left, d)
			}
		}
	}
	return left
}

// leaving returns the message of a deleted Resource: the first error, or how many clusters are left.
func leaving(states []kontrol.AppliedState) string {
	for i := range states {
		if s := &states[i].State; s.Error != "" {
			return bounded.Text("on "+s.Cluster+": "+s.Error, kontrol.MaxError)
		}
	}
	return "the object is being removed from " + count.Of(len(states), "cluster")
}

func (s *summary) inputs(ctx context.Context, r *kontrol.Resource) (list []state.Input, err error) {
	names, err := clustersOf(ctx, s.Cache, r)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		in, err := inputOf(ctx, s.Cache, r, n)
		if err != nil {
			return nil, err
		}
		list = append(list, in)
	}
	return list, nil
}

// unhealthy are the messages of records without one.
var unhealthy = map[kontrol.Health]string{
	kontrol.HealthProgressing: "the object is not ready yet",
	kontrol.HealthMissing:     "the object does not exist",
	kontrol.HealthDegraded:    "the object has failed",
}

// Summarize sets the status from the records of each cluster. It is pure except for the conditions' times.
func Summarize(s *kontrol.ResourceStatus, r *kontrol.Resource, inputs []state.Input) {
	var sum state.Sum
	health, about := kontrol.HealthHealthy, ""
	worse := map[kontrol.Health]int{
		kontrol.HealthHealthy:     0,
		kontrol.HealthProgressing: 1,
		kontrol.HealthMissing:     2,
		kontrol.HealthDegraded:    3,
	}
	for _, in := range inputs {
		sum.Add(state.Of(in))
		switch c := in.Current; {
		case c == nil:
			health = kontrol.HealthMissing
		case worse[c.Health] > worse[health]:
			health, about = c.Health, "on "+c.Cluster+": "+cmp.Or(c.HealthMessage, unhealthy[c.Health])
		}
	}
	if len(inputs) == 0 {
		sum.State, sum.Message, health = kontrol.StateUnreachable, "no cluster matches the selector: label a cluster, or "+
			"change spec.clusterSelector", kontrol.HealthMissing
	}
	s.ObservedGeneration, s.State, s.Clusters = r.Generation, sum.State, sum.Counts
	setSynced(s, sum.Message)
	healthy := metav1.Condition{
		Type:    kontrol.ConditionHealthy,
		Status:  metav1.ConditionFalse,
		Reason:  string(health),
		Message: bounded.Text(about, kontrol.MaxError),
	}
	if health == kontrol.HealthHealthy {
		healthy.Status = metav1.ConditionTrue
	}
	setCondition(s, healthy)
}

// setCondition sets a condition. Its time has the stored resolution of seconds, so that the cache can share equal
// values.
func setCondition(s *kontrol.ResourceStatus, c metav1.Condition) {
	c.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
	meta.SetStatusCondition(&s.Conditions, c)
}

func setSynced(s *kontrol.ResourceStatus, message string) {
	s.Message = bounded.Text(message, kontrol.MaxError)
	synced := metav1.Condition{
		Type:    kontrol.ConditionSynced,
		Status:  metav1.ConditionFalse,
		Reason:  string(s.State),
		Message: s.Message,
	}
	if s.State == kontrol.StateSynced || s.State == kontrol.StateDegraded {
		synced.Status = metav1.ConditionTrue
	}
	setCondition(s, synced)
}

func outOfSync(s *kontrol.ResourceStatus, message string) {
	s.State = kontrol.StateOutOfSync
	setSynced(s, message)
}
