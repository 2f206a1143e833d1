package controller

import (
	"hash/maphash"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// TestARecordDependsOnNothingElse checks that a recorded object is compared again if an input of the record changes,
// and only then.
func TestARecordDependsOnNothingElse(t *testing.T) {
	type input struct {
		r *kontrol.Resource
		a *kontrol.Applied
		c *kontrol.CurrentState
	}
	seed := maphash.MakeSeed()
	of := func(change func(*input)) uint64 {
		in := input{
			newResource(),
			observed(nil).Applied,
			&kontrol.CurrentState{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "5"}},
		}
		change(&in)
		return basis(seed, in.r, in.a, in.c)
	}
	same := of(func(*input) {})
	require.NotZero(t, same)
	for name, change := range map[string]func(*input){
		"another revision is desired, and not applied yet": func(in *input) {
			in.r.Generation++
			in.r.Spec.Template.Raw = []byte(`{}`)
		},
		"the same was applied again": func(in *input) { in.a.AppliedAt = nil; in.a.Corrections++ },
	} {
		require.Equal(t, same, of(change), name)
	}
	for name, change := range map[string]func(*input){
		"another mode":           func(in *input) { in.r.Spec.Mode = kontrol.ModeEnforce },
		"another field ignored":  func(in *input) { in.r.Spec.Ignore = &kontrol.Ignore{Fields: []string{"data.a"}} },
		"another manager":        func(in *input) { in.r.Spec.Ignore = &kontrol.Ignore{Managers: []string{"data.a"}} },
		"a new Resource":         func(in *input) { in.r.UID = "v" },
		"another generation":     func(in *input) { in.a.Generation++ },
		"another revision":       func(in *input) { in.a.Revision++ },
		"another answer":         func(in *input) { in.a.Object.Raw = []byte(`{}`) },
		"other fields applied":   func(in *input) { in.a.Fields.Raw = []byte(`{}`) },
		"nothing applied":        func(in *input) { in.a = nil },
		"the record was changed": func(in *input) { in.c.ResourceVersion = "6" },
	} {
		require.NotEqual(t, same, of(change), name)
	}
}

func TestTheWatchHasTimeToShowWhatWasApplied(t *testing.T) {
	a, c := observed(nil).Applied, &kontrol.CurrentState{}
	c.State.Generation = 1
	require.Equal(t, loadAfter, underWay(a, c, now))
	require.LessOrEqual(t, underWay(a, c, now.Add(loadAfter)), time.Duration(0))
	c.State.Generation = a.Generation
	require.Zero(t, underWay(a, c, now))
	require.Zero(t, underWay(a, nil, now))
	require.Zero(t, underWay(nil, c, now))
}

// TestWhatWasAddedStaysFirstSeen checks that drift in extra fields keeps its first-seen time during an apply with a
// yet unknown result.
func TestWhatWasAddedStaysFirstSeen(t *testing.T) {
	in := observed(nil)
	seen := watch.Seen{
		Known: true,
		Object: &unstructured.Unstructured{
			Object: object.Parse([]byte(
				`{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"2","more":"x"},"metadata":{"name":"m","namespace":"ns",
		"annotations":{"kontrol/resource-id":"0","kontrol/generation":"3","kontrol/revision":"2"},
		"managedFields":[{"manager":"kontrol","operation":"Apply","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{"f:kontrol/generation":{}}}}}]}}`)),
		},
	}
	before := metav1.NewMicroTime(now.Add(-time.Hour))
	more := kontrol.Drift{Path: ".data.more", Type: kontrol.DriftAdded, FirstSeen: before}
	was := *in.Current
	was.Drift, was.DriftCount = []kontrol.Drift{{Path: ".data.a", Type: kontrol.DriftChanged, FirstSeen: before}, more}, 1
	next := PlanCurrent(in.Resource, "c", in.Applied, &was, seen, now)
	require.Equal(t, []kontrol.Drift{more}, next.Drift)
	require.Zero(t, next.DriftCount)
	require.Len(t, was.Drift, 2)
}

// TestTheResourceVersionFollows checks that a change of the version alone is recorded, at most once a second.
func TestTheResourceVersionFollows(t *testing.T) {
	in := observed(nil)
	o := &unstructured.Unstructured{Object: object.Parse([]byte(
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"ns","resourceVersion":"7"}}`))}
	was := PlanCurrent(in.Resource, "c", nil, nil, watch.Seen{Known: true, Object: o}, now)
	require.Equal(t, "7", was.ResourceVersion)
	o = o.DeepCopy()
	o.SetResourceVersion("8")
	seen := watch.Seen{Known: true, Object: o}
	soon := PlanCurrent(in.Resource, "c", nil, &was, seen, now.Add(versionPause-time.Millisecond))
	require.Equal(t, was, soon)
	later := PlanCurrent(in.Resource, "c", nil, &was, seen, now.Add(versionPause))
	require.Equal(t, "8", later.ResourceVersion)
}
