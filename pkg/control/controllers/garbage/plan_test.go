package garbage

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func owned(by ...types.UID) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "o", UID: "o"}}
	yes := true
	for _, uid := range by {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{
			APIVersion:         "v1",
			Kind:               "Pod",
			Name:               string(uid),
			UID:                uid,
			BlockOwnerDeletion: &yes,
		})
	}
	return o
}

func with(o *metav1.PartialObjectMetadata, deleting bool, finalizers ...string) *metav1.PartialObjectMetadata {
	if deleting {
		o.DeletionTimestamp = &metav1.Time{}
	}
	o.Finalizers = finalizers
	return o
}

func TestPlan(t *testing.T) {
	fg, orphan := metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents
	two := owned("a", "b")
	for name, c := range map[string]struct {
		o    Observed
		want Action
	}{
		"no owner":       {Observed{Object: owned()}, Action{}},
		"owner is there": {Observed{Object: owned("a"), Owners: []Owner{Solid}}, Action{}},
		"owner is gone": {
			Observed{Object: owned("a"), Owners: []Owner{Absent}}, Action{Delete: metav1.DeletePropagationBackground},
		},
		"one of two is gone": {
			Observed{Object: two, Owners: []Owner{Absent, Solid}}, Action{Refs: two.OwnerReferences[1:]},
		},
		"one waits, one stays": {
			Observed{Object: two, Owners: []Owner{Waiting, Solid}}, Action{Refs: two.OwnerReferences[1:]},
		},
		"owner waits": {
			Observed{Object: owned("a"), Owners: []Owner{Waiting}}, Action{Delete: metav1.DeletePropagationBackground},
		},
		"owner waits, has own": {
			Observed{Object: owned("a"), Owners: []Owner{Waiting}, Dependents: 1},
			Action{Delete: metav1.DeletePropagationForeground},
		},
		"circle": {
			Observed{Object: owned("a"), Owners: []Owner{Waiting}, Dependents: 1, Circle: true},
			Action{Delete: metav1.DeletePropagationForeground, Unblock: true},
		},
		"deleted, waits": {
			Observed{Object: with(owned(), true, fg), Dependents: 2, Blocking: 1}, Action{Collect: true},
		},
		"deleted, none left":     {Observed{Object: with(owned(), true, fg), Dependents: 1}, Action{Finish: true}},
		"deleted, orphans":       {Observed{Object: with(owned(), true, orphan), Dependents: 1}, Action{Orphan: true}},
		"deleted, other's hands": {Observed{Object: with(owned("a"), true, "x/y")}, Action{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Plan(c.o)) })
	}
}

// TestGraphKnowsAllDependents: after any events, the graph contains exactly the existing dependents.
func TestGraphKnowsAllDependents(t *testing.T) {
	gvk := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	owners := []types.UID{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		g := newGraph()
		there := map[string]*metav1.PartialObjectMetadata{}
		for i := range rapid.IntRange(1, 50).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")
			var was, is client.Object
			if o := there[name]; o != nil {
				was = o
			}
			if was == nil || rapid.Bool().Draw(t, "change") {
				o := owned(rapid.SliceOfNDistinct(rapid.SampledFrom(owners), 0, 2, rapid.ID[types.UID]).Draw(t, "owners")...)
				o.Name, o.UID = name, types.UID(name)
				if was != nil && rapid.Bool().Draw(t, "replaced") {
					o.UID += types.UID(rune('0' + i))
				}
				is = o
				there[name] = o
			} else {
				delete(there, name)
			}
			g.see(gvk, was, is)
		}
		for _, uid := range owners {
			want := 0
			for name, o := range there {
				for _, ref := range o.OwnerReferences {
					if ref.UID == uid {
						want++
						require.Equal(t, o.UID, g.dependents[uid][object{gvk, "", name}])
					}
				}
			}
			require.Len(t, g.of(uid), want)
		}
	})
}

func TestRequestsCarryTheKind(t *testing.T) {
	o := object{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, "ns", "name"}
	got, ok := unpack(o.request())
	require.True(t, ok)
	require.Equal(t, o, got)
}
