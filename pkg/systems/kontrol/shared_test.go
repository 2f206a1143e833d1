package kontrol

import (
	"bytes"
	"encoding/json"
	"fmt"
	runtimego "runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/randfill"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// newMeta is the metadata of an object that was written at a time.
func newMeta(name string, at time.Time) metav1.ObjectMeta {
	written := metav1.NewTime(at)
	return metav1.ObjectMeta{
		Name: name, UID: types.UID(uuid.NewString()), ResourceVersion: "7", Generation: 2,
		CreationTimestamp: metav1.Unix(1, 0),
		Labels:            map[string]string{"app": "a", "tier": "b"}, Finalizers: []string{kontrol.FinalizerTargets},
		ManagedFields: []metav1.ManagedFieldsEntry{
			{
				Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &written,
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:state":{}}`),
			}},
	}
}

// repack packs an object, and unpacks it when nobody has the one that was packed any more.
func repack(s *shared, o client.Object) (held, whole client.Object) {
	r := s.pack(&kind.Resource{
		Internal: func(o client.Object) (runtime.Object, error) { return o, nil },
		Fields:   func(client.Object) fields.Set { return nil },
	})
	p := r.Pack(o)
	forgotten := kind.AtRevision(p, 8)
	return p, r.Unpack(kind.AtRevision(forgotten, 7))
}

// TestPackedObjectsAreWhole: whatever a Kontrol object has, it has after it was packed.
func TestPackedObjectsAreWhole(t *testing.T) {
	s := newShared()
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Int64().Draw(rt, "seed")
		random := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(1, 3).MaxDepth(12).Funcs(
			func(v *runtime.RawExtension, c randfill.Continue) {
				v.Raw = fmt.Appendf(nil, `{"a":%q}`, strings.Repeat("x", c.Intn(300)))
			},
			func(v *apiextensionsv1.JSON, c randfill.Continue) { v.Raw = fmt.Appendf(nil, `%d`, c.Int63()) },
			func(v *metav1.FieldsV1, c randfill.Continue) {
				v.SetRawBytes(fmt.Appendf(nil, `{"f:a%d":{}}`, c.Int63n(9)))
			},
			func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(c.Int63n(3), c.Int63n(2)) },
			func(v *metav1.MicroTime, c randfill.Continue) { v.Time = time.Unix(c.Int63n(3), c.Int63n(2)) },
			func(v *types.UID, c randfill.Continue) {
				if *v = types.UID(uuid.UUID{byte(c.Intn(3))}.String()); c.Bool() {
					*v = types.UID(strings.ToUpper(string(*v)) + "A")
				}
			},
		)
		for _, o := range []client.Object{&kontrol.Resource{}, &kontrol.AppliedState{}, &kontrol.CurrentState{}} {
			random.Fill(o)
			o.SetResourceVersion("7")
			o.SetSelfLink("")
			want := o.DeepCopyObject()
			text, err := json.Marshal(want)
			require.NoError(rt, err)
			held, whole := repack(s, o)
			copied := kind.Shallow(held)
			copied.SetResourceVersion("")
			// what others share stays as it is
			copied.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Kind: "Other"})
			require.True(rt, equality.Semantic.DeepEqual(want, whole), "%s", cmp.Diff(want, whole))
			require.Equal(rt, fmt.Sprintf("%T", want), fmt.Sprintf("%T", whole))
			require.Equal(rt, want.GetObjectKind().GroupVersionKind(), held.GetObjectKind().GroupVersionKind())
			again, err := json.Marshal(held)
			require.NoError(rt, err)
			require.Equal(rt, string(text), string(again))
			require.Equal(rt,
				[]any{
					o.GetName(), o.GetUID(), o.GetResourceVersion(), o.GetGeneration(), o.GetLabels(), o.GetAnnotations(),
					o.GetFinalizers(), o.GetNamespace(),
				},
				[]any{
					held.GetName(), held.GetUID(), held.GetResourceVersion(), held.GetGeneration(), held.GetLabels(),
					held.GetAnnotations(), held.GetFinalizers(), held.GetNamespace(),
				})
			require.True(rt, equality.Semantic.DeepEqual(o.GetManagedFields(), held.GetManagedFields()))
			require.Equal(rt, o.GetCreationTimestamp().UnixNano(), held.GetCreationTimestamp().UnixNano())
		}
	})
}

// TestPackedObjectsShareWhatIsAlike: what objects have in common is held once, and what a cluster has once with what
// was applied.
func TestPackedObjectsShareWhatIsAlike(t *testing.T) {
	s := newShared()
	body := func(i int) []byte {
		return fmt.Appendf(nil, `{"kind":"ConfigMap","metadata":{"name":"m%d"},"data":{"text":%q}}`, i,
			bytes.Repeat([]byte("x"), minText))
	}
	var applied []*packed[kontrol.AppliedState, *kontrol.AppliedState, appliedRest]
	var current []*packed[kontrol.CurrentState, *kontrol.CurrentState, currentRest]
	for i := range 100 {
		at := metav1.NewMicroTime(time.Unix(int64(i)+1, 0))
		name := fmt.Sprintf("a%d", i)
		of := kontrol.Subject{
			Resource:    name,
			ResourceUID: uuid.NewString(),
			ResourceID:  int64(i),
			Cluster:     "there",
			Target:      kontrol.Target{APIVersion: "v1", Kind: "ConfigMap", Name: name},
		}
		a := &kontrol.AppliedState{
			ObjectMeta: newMeta(name+".there", at.Time),
			State:      kontrol.Applied{Subject: of, Generation: int64(i), Time: &at, Status: kontrol.ApplyApplied},
		}
		a.State.Object.Raw, a.State.Fields.Raw = body(i), body(0)
		c := &kontrol.CurrentState{
			ObjectMeta: newMeta(name+".there", at.Time),
			State:      kontrol.Current{Subject: of, Present: true, UID: uuid.NewString(), ResourceVersion: name, Time: &at},
		}
		c.State.Object.Raw = body(i)
		held, _ := repack(s, a)
		applied = append(applied, held.(*packed[kontrol.AppliedState, *kontrol.AppliedState, appliedRest]))
		held, _ = repack(s, c)
		current = append(current, held.(*packed[kontrol.CurrentState, *kontrol.CurrentState, currentRest]))
	}
	for i := range applied {
		require.Same(t, unsafe.SliceData(applied[i].rest.object), unsafe.SliceData(current[i].rest.object), i)
		require.Same(t, unsafe.SliceData(applied[0].rest.fields), unsafe.SliceData(applied[i].rest.fields), i)
		require.Same(t, &applied[0].own.managed[0], &current[i].own.managed[0], i)
		require.Same(t, applied[0].Object, applied[i].Object, i)
		require.Same(t, current[0].Object, current[i].Object, i)
	}

	// What is large is not remembered, as it would stay when nobody has it any more.
	known := len(s.labels)
	repack(s, &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": strings.Repeat("x", maxKey)}},
	})
	require.Len(t, s.labels, known)

	// What nobody has any more, as those above are not used below, is not kept.
	require.Eventually(t, func() bool {
		runtimego.GC()
		for _, left := range s.texts {
			if left.first.Value() != nil {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)

	// The memory is bounded.
	for i := range maxTexts + 10 {
		s.text(body(i))
	}
	require.LessOrEqual(t, len(s.texts), maxTexts)
}
