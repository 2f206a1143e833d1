package controller

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newCluster(ready bool) *kontrol.Cluster {
	c := &kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	c.Status.Conditions = []metav1.Condition{{Type: kontrol.ConditionReady, Status: status, Message: "no answer"}}
	return c
}

func newResource() *kontrol.Resource {
	r := &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "u", Generation: 2}, Spec: kontrol.ResourceSpec{ClusterName: "c",
			Template: runtime.RawExtension{
				Raw: []byte(`{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"}}`),
			}},
	}
	kontrol.Default(r)
	return r
}

func observed(change func(*Observed)) Observed {
	at := metav1.NewMicroTime(now)
	s := kontrol.Subject{ResourceUID: "u"}
	o := Observed{Resource: newResource(), Cluster: newCluster(true),
		Applied: &kontrol.Applied{
			Subject:             s,
			Generation:          2,
			Revision:            1,
			AttemptedGeneration: 2,
			Status:              kontrol.ApplyApplied,
			AppliedAt:           &at,
		},
		Current: &kontrol.Current{Subject: s, Present: true, Generation: 2, Revision: 1}}
	if change != nil {
		change(&o)
	}
	return o
}

// windows returns a change that gives a Resource a window that is open now, or has just ended.
func windows(kind kontrol.WindowKind, open bool) func(*Observed) {
	return func(o *Observed) {
		schedule := "0 3 * * *" // now is 03:04:05
		if !open {
			schedule = "3 3 * * *"
		}
		o.Resource.Spec.Windows = []kontrol.SyncWindow{
			{Kind: kind, Schedule: schedule, Duration: metav1.Duration{Duration: time.Minute * 5}},
		}
		if !open {
			o.Resource.Spec.Windows[0].Duration.Duration = time.Minute
		}
	}
}

func TestPlan(t *testing.T) {
	shut := 24*time.Hour - 65*time.Second // until 03:03
	manual := func(approved int64) func(*Observed) {
		return func(o *Observed) {
			o.Resource.Spec.Approval, o.Resource.Status.Approved = kontrol.ApprovalManual, approved
		}
	}
	edited := func(o *Observed) { o.Resource.Generation = 3 }
	drifted := func(o *Observed) { o.Current.DriftCount = 1 }
	for name, c := range map[string]struct {
		change []func(*Observed)
		want   Step
	}{
		"in sync": {nil, Step{}},
		"new": {
			[]func(*Observed){func(o *Observed) { o.Applied, o.Current = nil, nil }}, Step{Apply: true},
		},
		"edited": {[]func(*Observed){edited}, Step{Apply: true}},
		"no cluster": {
			[]func(*Observed){edited, func(o *Observed) { o.Cluster = nil }},
			Step{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonNoCluster},
		},
		"unreachable": {
			[]func(*Observed){edited, func(o *Observed) { o.Cluster = newCluster(false) }},
			Step{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonUnreachable},
		},
		"suspended": {
			[]func(*Observed){edited, func(o *Observed) { o.Resource.Spec.Suspend = true }},
			Step{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonSuspended},
		},
		"frozen": {
			[]func(*Observed){drifted, func(o *Observed) { o.Cluster.Spec.Suspend = true }}, Step{},
		},
		"waits": {
			[]func(*Observed){edited, func(o *Observed) { o.Waits, o.WaitsReason = "x", "Dependency" }},
			Step{Status: kontrol.ApplyWaiting, Reason: "Dependency"},
		},
		"not approved": {
			[]func(*Observed){edited, manual(2)}, Step{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonApproval},
		},
		"approved":                  {[]func(*Observed){edited, manual(3)}, Step{Apply: true}},
		"drift of what is approved": {[]func(*Observed){drifted, manual(2)}, Step{Apply: true, Correct: true}},
		"in its window":             {[]func(*Observed){edited, windows(kontrol.WindowAllow, true)}, Step{Apply: true}},
		"outside its window": {
			[]func(*Observed){edited, windows(kontrol.WindowAllow, false)},
			Step{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonWindow, Again: shut},
		},
		"in sync outside": {[]func(*Observed){windows(kontrol.WindowAllow, false)}, Step{}},
		"drift outside":   {[]func(*Observed){drifted, windows(kontrol.WindowAllow, false)}, Step{Again: shut}},
		"drift while denied": {
			[]func(*Observed){drifted, windows(kontrol.WindowDeny, true)}, Step{Again: 55 * time.Second},
		},
		"denied": {
			[]func(*Observed){edited, windows(kontrol.WindowDeny, true)},
			Step{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonWindow, Again: 55 * time.Second},
		},
		"denied before": {[]func(*Observed){edited, windows(kontrol.WindowDeny, false)}, Step{Apply: true}},
		"second": {
			[]func(*Observed){func(o *Observed) { o.Other = "first" }},
			Step{Status: kontrol.ApplyConflict, Reason: kontrol.ReasonSameObject},
		},
		"failed": {
			[]func(*Observed){func(o *Observed) { o.Applied.Status = kontrol.ApplyFailed }}, Step{Apply: true},
		},
		"failed now": {
			[]func(*Observed){edited, func(o *Observed) { o.Tries = Tries{Generation: 3, Next: now.Add(time.Second)} }},
			Step{Again: time.Second},
		},
		"changed since": {[]func(*Observed){edited, func(o *Observed) {
			o.Tries = Tries{Generation: 3, Last: now.Add(-changedPause), Next: now.Add(time.Minute), Seen: "earlier"}
		}}, Step{Apply: true}},
		"changed just now": {[]func(*Observed){edited, func(o *Observed) {
			o.Tries = Tries{Generation: 3, Last: now.Add(-time.Second), Next: now.Add(time.Minute), Seen: "earlier"}
		}}, Step{Again: changedPause - time.Second}},
		"edited since": {
			[]func(*Observed){edited, func(o *Observed) { o.Tries = Tries{Generation: 2, Next: now.Add(time.Second)} }},
			Step{Apply: true},
		},
		"drift":    {[]func(*Observed){drifted}, Step{Apply: true, Correct: true}},
		"reported": {[]func(*Observed){drifted, func(o *Observed) { o.Resource.Spec.Mode = kontrol.ModeReport }}, Step{}},
		"enforced": {
			[]func(*Observed){drifted, func(o *Observed) { o.Resource.Spec.Mode = kontrol.ModeEnforce }},
			Step{Apply: true, Correct: true, Prune: true},
		},
		"a fight": {
			[]func(*Observed){drifted, func(o *Observed) { o.Tries = Tries{Corrections: 7, Corrected: now} }},
			Step{Again: 4 * time.Second},
		},
		"unseen": {[]func(*Observed){func(o *Observed) { o.Current.Generation = 1 }}, Step{Again: pendingPatience}},
		"unseen long": {[]func(*Observed){func(o *Observed) {
			o.Current.Generation = 1
			at := metav1.NewMicroTime(now.Add(-time.Hour))
			o.Applied.AppliedAt = &at
		}}, Step{Apply: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := observed(func(o *Observed) {
				for _, f := range c.change {
					f(o)
				}
			})
			got := Plan(o, now)
			if got.Status != "" {
				require.NotEmpty(t, got.Error, "it says what to do")
			}
			got.Error = ""
			require.Equal(t, c.want, got)
		})
	}
}

func TestExplain(t *testing.T) {
	conflict := apierrors.NewApplyConflict([]metav1.StatusCause{
		{Type: metav1.CauseTypeFieldManagerConflict, Field: ".data.a", Message: `conflict with "x" using v1`},
	}, "no")
	require.Contains(t, explain(conflict, kontrol.ModeReport).Error, "spec.mode Correct")
	explain := func(err error) kontrol.Applied { return explain(err, kontrol.ModeCorrect) }
	require.Equal(t, kontrol.ReasonFieldConflict, explain(conflict).Reason)
	require.Contains(t, explain(conflict).Error, "spec.ignore")
	require.NotContains(t, explain(conflict).Error, "Correct")
	require.Equal(t, kontrol.ApplyWaiting, explain(&meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "A"}}).Status)
	require.Equal(t, kontrol.ReasonSameObject, explain(&claimedError{4}).Reason)
	require.Equal(t, kontrol.ApplyFailed, explain(errors.New("x")).Status)

	before := &kontrol.Applied{Generation: 1, Fields: runtime.RawExtension{Raw: []byte(`{"f:data":{"f:a":{}}}`)}}
	require.True(t, updated(conflicts(conflict)) && ours(conflicts(conflict), before), "drift is taken back")
	require.False(t, ours(conflicts(conflict), nil), "what was never applied is not taken")
	require.False(t, ours(conflicts(conflict), &kontrol.Applied{Generation: 1}))
	other := apierrors.NewApplyConflict([]metav1.StatusCause{
		{Type: metav1.CauseTypeFieldManagerConflict, Field: ".data.a", Message: `conflict with "x"`},
	}, "no")
	require.False(t, updated(conflicts(other)), "nor what somebody else applies")
}

func TestClusterStatus(t *testing.T) {
	var s kontrol.ClusterStatus
	up := target.Status{
		Ready: true, Reason: kontrol.ReasonConnected, Message: "the cluster answers", Version: "v1", Seen: now,
	}
	require.Equal(t, seenInterval, clusterStatus(&s, 3, up, now))
	require.Equal(t, now, s.LastSeen.Time)
	was := *s.DeepCopy()
	up.Seen = now.Add(time.Minute)
	clusterStatus(&s, 3, up, now.Add(time.Minute))
	require.Equal(t, was, s, "a cluster that answers costs no writes")
	down := target.Status{Reason: kontrol.ReasonUnreachable, Message: "port 1", Seen: up.Seen}
	clusterStatus(&s, 3, down, now.Add(2*time.Minute))
	require.Equal(t, up.Seen, s.LastSeen.Time)
	require.Equal(t, "v1", s.Version)
	was = *s.DeepCopy()
	down.Message = "port 2"
	clusterStatus(&s, 3, down, now.Add(3*time.Minute))
	require.Equal(t, was, s, "nor does one that goes on failing")
}

// Cached objects are shared: recorded drift keeps its time while the cluster cannot be read, and is not modified.
func TestUnreadableKeepsWhatWasSeen(t *testing.T) {
	r := newResource()
	first := metav1.NewMicroTime(now.Add(-time.Hour))
	was := &kontrol.Current{
		Subject:    subject(r, "c"),
		Present:    true,
		DriftCount: 1,
		Drift:      []kontrol.Drift{{Path: ".data.a", Type: kontrol.DriftChanged, FirstSeen: first}},
	}
	before := was.DeepCopy()
	next := PlanCurrent(r, "c", nil, was, watch.Seen{Reason: "Forbidden", Error: "no"}, now)
	require.Equal(t, "Forbidden", next.Reason)
	require.Equal(t, first, next.Drift[0].FirstSeen)
	next.Drift[0].Path = "changed"
	require.Equal(t, before, was)
}

// TestWhatMayBeThereIsKnown checks that before a request is sent, the record says that the object may exist, so
// that deleting the Resource can delete it.
func TestWhatMayBeThereIsKnown(t *testing.T) {
	for name, a := range map[string]kontrol.Applied{
		"recorded before it is sent": {Status: kontrol.ApplyPending},
		"no answer came": {
			Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonUnreachable, Attempted: true,
		},
		"it waits on a cluster that answers": {
			Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonSuspended, Attempted: true,
		},
		"the cluster refused it": {Status: kontrol.ApplyFailed},
		"fields of others":       {Status: kontrol.ApplyConflict, Reason: kontrol.ReasonFieldConflict},
		"an earlier generation":  {Status: kontrol.ApplyWaiting, Generation: 1},
	} {
		require.True(t, attempted(&a), name)
	}
	require.False(t, attempted(&kontrol.Applied{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonUnreachable}))
	require.False(t, attempted(&kontrol.Applied{Status: kontrol.ApplyConflict, Reason: kontrol.ReasonSameObject}))
}

// TestALateRequestIsWaitedFor checks that a request without an answer, or from an earlier process, may still create
// an object.
func TestALateRequestIsWaitedFor(t *testing.T) {
	at := metav1.NewMicroTime(now.Add(-time.Second))
	applied := &kontrol.Applied{Status: kontrol.ApplyApplied, Generation: 1, Attempted: true, Time: &at}
	require.LessOrEqual(t, late(applied, time.Time{}, now.Add(-time.Hour), now), time.Duration(0))
	require.Equal(t, lateness, late(applied, time.Time{}, now, now), "of an earlier process")
	require.Equal(t, lateness, late(applied, now, now.Add(-time.Hour), now), "lost just now")
	require.Equal(t, lateness-time.Second,
		late(&kontrol.Applied{Status: kontrol.ApplyPending, Attempted: true, Time: &at}, time.Time{}, now.Add(-time.Hour),
			now))
	require.LessOrEqual(t,
		late(&kontrol.Applied{Status: kontrol.ApplyWaiting, Reason: kontrol.ReasonUnreachable, Time: &at}, time.Time{}, now,
			now), time.Duration(0), "never sent")
}
