package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

func cluster(ready metav1.ConditionStatus) *kontrol.Cluster {
	return &kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Status: kontrol.ClusterStatus{Conditions: []metav1.Condition{
			{Type: kontrol.ConditionReady, Status: ready, Message: "no answer"}}},
	}
}

func input(change func(*Input)) Input {
	s := kontrol.Subject{ResourceUID: "u"}
	in := Input{
		Resource: &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: 2}},
		Cluster:  cluster(metav1.ConditionTrue),
		Applied: &kontrol.Applied{
			Subject:             s,
			Generation:          2,
			Revision:            1,
			AttemptedGeneration: 2,
			Status:              kontrol.ApplyApplied,
		},
		Current: &kontrol.Current{Subject: s, Present: true, Generation: 2, Revision: 1, Health: kontrol.HealthHealthy},
	}
	if change != nil {
		change(&in)
	}
	return in
}

func TestOf(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Input)
		want    kontrol.State
		message string
	}{
		"synced": {nil, kontrol.StateSynced, ""},
		"no cluster": {
			func(in *Input) { in.Cluster = nil }, kontrol.StateUnreachable, "the cluster does not exist",
		},
		"no answer": {
			func(in *Input) { in.Cluster = cluster(metav1.ConditionFalse) }, kontrol.StateUnreachable, "cluster c: no answer",
		},
		"never applied": {func(in *Input) { in.Applied = nil }, kontrol.StateOutOfSync, "generation 2 is not applied yet"},
		"edited":        {func(in *Input) { in.Resource.Generation = 3 }, kontrol.StateOutOfSync, "generation 3"},
		"refused": {
			func(in *Input) { in.Resource.Generation, in.Applied.Error = 3, "no" }, kontrol.StateOutOfSync, "on c: no",
		},
		"an earlier one": {func(in *Input) { in.Applied.ResourceUID = "v" }, kontrol.StateOutOfSync, ""},
		"conflict": {
			func(in *Input) { in.Applied.Status, in.Applied.Error = kontrol.ApplyConflict, "theirs" }, kontrol.StateConflict,
			"theirs",
		},
		"former conflict": {func(in *Input) {
			in.Applied.Status, in.Applied.AttemptedGeneration, in.Resource.Generation = kontrol.ApplyConflict, 2, 3
		}, kontrol.StateOutOfSync, ""},
		"not seen": {func(in *Input) { in.Current = nil }, kontrol.StatePendingApplied, "not seen"},
		"seen before": {
			func(in *Input) { in.Current.Generation = 1 }, kontrol.StatePendingApplied,
			"generation 2 was applied, 1 was seen last",
		},
		"seen before it was applied again": {func(in *Input) {
			in.Current.ResourceVersion, in.Applied.ResourceVersion = "9", "10"
			in.Current.Object.Raw, in.Applied.Object.Raw = []byte(`{"a":1}`), []byte(`{"a":2}`)
		}, kontrol.StatePendingApplied, "applied again, but not seen since"},
		"applied again without a change": {func(in *Input) {
			in.Current.ResourceVersion, in.Applied.ResourceVersion = "9", "10"
			in.Current.Object.Raw, in.Applied.Object.Raw = []byte(`{"a":1}`), []byte(`{"a":1}`)
		}, kontrol.StateSynced, ""},
		"another revision": {func(in *Input) { in.Current.Revision = 7 }, kontrol.StatePendingApplied, ""},
		"cannot be watched": {
			func(in *Input) { in.Current.Reason, in.Current.Error = "Forbidden", "no" }, kontrol.StatePendingApplied, "on c: no",
		},
		"not there yet": {func(in *Input) { in.Current.Present = false }, kontrol.StatePendingApplied, ""},
		"drift": {func(in *Input) {
			in.Current.DriftCount, in.Current.Drift = 2, []kontrol.Drift{{Path: ".a", Type: kontrol.DriftChanged, Manager: "m"}}
		}, kontrol.StateDrifted, ".a was changed by m, and 1 more"},
		"removed": {func(in *Input) {
			in.Current.Present, in.Current.DriftCount, in.Current.Drift = false, 1, []kontrol.Drift{{Type: kontrol.DriftRemoved}}
		}, kontrol.StateDrifted, "the object was removed"},
		"does not work": {
			func(in *Input) { in.Current.Health, in.Current.HealthMessage = kontrol.HealthDegraded, "crashes" },
			kontrol.StateDegraded, "crashes",
		},
		"correction refused": {
			func(in *Input) { in.Applied.Status, in.Applied.Error = kontrol.ApplyFailed, "no" }, kontrol.StateOutOfSync, "no",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, message := Of(input(c.change))
			require.Equal(t, c.want, got)
			require.Contains(t, message, c.message)
			require.Equal(t, got == kontrol.StateSynced, message == "", "a message says what is wrong")
		})
	}
}

// TestSyncedIsTrue checks that Synced requires all its inputs to be known and to agree.
func TestSyncedIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := func(name string) int64 { return rapid.Int64Range(0, 2).Draw(t, name) }
		in := input(func(in *Input) {
			in.Resource.Generation = small("desired")
			in.Applied.Generation, in.Applied.Revision, in.Applied.AttemptedGeneration = small("applied"), small("revision"),
				small("attempted")
			in.Applied.Status = rapid.SampledFrom([]kontrol.ApplyStatus{
				kontrol.ApplyApplied, kontrol.ApplyFailed, kontrol.ApplyConflict, kontrol.ApplyWaiting, kontrol.ApplyPending,
			}).Draw(t, "status")
			in.Applied.Error = rapid.SampledFrom([]string{"", "x"}).Draw(t, "error")
			in.Current.Generation, in.Current.Revision, in.Current.Present = small("current"), small("revision seen"),
				rapid.Bool().Draw(t, "present")
			in.Current.DriftCount = int32(small("drift"))
			in.Current.Reason = rapid.SampledFrom([]string{"", "NoKind"}).Draw(t, "reason")
			if rapid.Bool().Draw(t, "unreachable") {
				in.Cluster = cluster(metav1.ConditionUnknown)
			}
		})
		got, _ := Of(in)
		a, c := in.Applied, in.Current
		agree := in.Cluster.Status.Conditions[0].Status == metav1.ConditionTrue && a.Generation == in.Resource.Generation &&
			c.Present && c.Reason == "" &&
			c.Generation == a.Generation && c.Revision == a.Revision && c.DriftCount == 0
		if got == kontrol.StateSynced && !agree {
			t.Fatalf("synced, but %+v %+v", a, c)
		}
		var sum Sum
		sum.Add(got, "")
		require.EqualValues(t, 1, sum.Counts.Total)
		require.Equal(t, got, sum.State)
	})
}

func TestTheWorstStateCounts(t *testing.T) {
	var sum Sum
	for _, s := range []kontrol.State{
		kontrol.StateSynced, kontrol.StateDrifted, kontrol.StateOutOfSync, kontrol.StateSynced,
	} {
		sum.Add(s, string(s))
	}
	require.Equal(t,
		Sum{
			Counts:  kontrol.ClusterCounts{Total: 4, Synced: 2, Drifted: 1, OutOfSync: 1},
			State:   kontrol.StateDrifted,
			Message: "Drifted",
		}, sum)
}
