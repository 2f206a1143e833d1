package controller

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// world is a cluster that implements server-side apply with field ownership.
type world struct {
	data  map[string]string
	owner map[string]string
	marks int64 // the generation in the annotation; 0 without the object
	// version is the object's resourceVersion.
	version int
}

func (w *world) live(r *kontrol.Resource) *unstructured.Unstructured {
	if w.marks == 0 {
		return nil
	}
	fields := map[string]map[string]any{}
	data := map[string]any{}
	for k, v := range w.data {
		data[k] = v
		if fields[w.owner[k]] == nil {
			fields[w.owner[k]] = map[string]any{}
		}
		fields[w.owner[k]]["f:"+k] = map[string]any{}
	}
	id := object.JSON(map[string]any{"x": r.Status.ID})
	number := string(id[5 : len(id)-1])
	var managed []any
	for m, f := range fields {
		op, set := "Update", map[string]any{"f:data": f}
		if m == kontrol.FieldManager {
			op = "Apply"
			set["f:metadata"] = map[string]any{
				"f:annotations": map[string]any{"f:" + kontrol.AnnotationGeneration: map[string]any{}},
			}
		}
		managed = append(managed, map[string]any{"manager": m, "operation": op, "fieldsType": "FieldsV1", "fieldsV1": set})
	}
	if fields[kontrol.FieldManager] == nil {
		managed = append(managed, map[string]any{
			"manager": kontrol.FieldManager, "operation": "Apply", "fieldsType": "FieldsV1",
			"fieldsV1": map[string]any{
				"f:metadata": map[string]any{
					"f:annotations": map[string]any{"f:" + kontrol.AnnotationGeneration: map[string]any{}},
				},
			},
		})
	}
	generation := object.JSON(map[string]any{"x": w.marks})
	g := string(generation[5 : len(generation)-1])
	return &unstructured.Unstructured{
		Object: object.Parse(object.JSON(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": data,
			"metadata": map[string]any{
				"name": "m", "namespace": "ns", "uid": "x", "resourceVersion": strconv.Itoa(w.version), "managedFields": managed,
				"annotations": map[string]any{
					kontrol.AnnotationID:         number,
					kontrol.AnnotationGeneration: g,
					kontrol.AnnotationRevision:   "1",
				},
			}})),
	}
}

// TestStatesConverge checks that after any interleaving of edits, drift, failures, lost watch events and restarts,
// Synced is only reported if it is true, and is reached once nothing else happens.
func TestStatesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newResource()
		w := &world{data: map[string]string{}, owner: map[string]string{}}
		var a *kontrol.Applied
		var cur *kontrol.Current
		clock, up, want := now, true, "1"
		seen := watch.Seen{}
		look := func() {
			if up {
				seen = watch.Seen{Known: true, Object: w.live(r)}
			}
		}
		record := func() {
			if seen.Known {
				next := PlanCurrent(r, "c", a, cur, seen, clock)
				cur = &next
			}
		}
		apply := func(breaks bool) {
			if a == nil {
				a = &kontrol.Applied{Subject: subject(r, "c"), Status: kontrol.ApplyPending}
				return
			}
			step := Plan(Observed{Resource: r, Cluster: newCluster(up), Applied: a, Current: cur}, clock)
			if !step.Apply {
				return
			}
			w.data["a"], w.owner["a"], w.marks = want, kontrol.FieldManager, r.Generation
			w.version++
			if step.Prune {
				delete(w.data, "added")
			}
			if breaks {
				return // killed before the result was recorded
			}
			at := metav1.NewMicroTime(clock)
			live := w.live(r)
			_, fields := object.Owned(live.GetManagedFields())
			a = &kontrol.Applied{
				Subject: subject(r, "c"), Generation: r.Generation, Revision: 1, AttemptedGeneration: r.Generation,
				Status: kontrol.ApplyApplied, AppliedAt: &at,
				Object: runtime.RawExtension{Raw: object.JSON(object.Record(live.Object))},
				Fields: runtime.RawExtension{Raw: fields}, ResourceVersion: live.GetResourceVersion(),
			}
		}
		r.Spec.Mode = rapid.SampledFrom([]kontrol.Mode{kontrol.ModeCorrect, kontrol.ModeEnforce}).Draw(t, "mode")
		state1 := func() kontrol.State {
			st, _ := state.Of(state.Input{Resource: r, Cluster: newCluster(up), Applied: a, Current: cur})
			return st
		}
		for range rapid.IntRange(0, 25).Draw(t, "steps") {
			clock = clock.Add(time.Second)
			switch rapid.SampledFrom([]string{
				"edit", "drift", "add", "remove", "look", "record", "apply", "killed", "cut", "mend",
			}).Draw(t, "step") {
			case "edit":
				r = r.DeepCopy()
				r.Generation++
				want = rapid.StringMatching("[0-9]").Draw(t, "value")
			case "drift":
				if w.marks > 0 {
					w.data["a"], w.owner["a"] = "drift", "somebody"
					w.version++
				}
			case "add":
				if w.marks > 0 {
					w.data["added"], w.owner["added"] = "x", "somebody"
					w.version++
				}
			case "remove":
				w.data, w.owner, w.marks = map[string]string{}, map[string]string{}, 0
			case "look":
				look()
			case "record":
				record()
			case "apply":
				if up {
					apply(false)
				}
			case "killed":
				if up {
					apply(true)
				}
			case "cut":
				up = false
			case "mend":
				up = true
			}
			// Invariant: Synced is reported only if the recorded object was in sync.
			if state1() == kontrol.StateSynced {
				require.Equal(t, r.Generation, a.Generation)
				value, _, _ := unstructured.NestedString(object.Parse(cur.Object.Raw), "data", "a")
				require.Equal(t, want, value, "it is said to be in sync")
			}
		}
		up = true
		for range 10 {
			clock = clock.Add(pendingPatience + time.Second)
			look()
			record()
			apply(false)
		}
		look()
		record()
		require.Equal(t, kontrol.StateSynced, state1(), "%+v %+v %+v", w, a, cur)
		require.Equal(t, want, w.data["a"])
		if r.Spec.Mode == kontrol.ModeEnforce {
			require.NotContains(t, w.data, "added")
		}
	})
}
