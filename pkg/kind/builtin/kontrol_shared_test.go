package builtin

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// TestStatesShareWhatTheyHave: what a cluster has is held once with what was applied, as long as anybody has it, and nothing changes by that.
func TestStatesShareWhatTheyHave(t *testing.T) {
	s := newShared()
	object := func(i int) []byte {
		return fmt.Appendf(nil, `{"kind":"ConfigMap","metadata":{"name":"m%d"},"data":{"text":%q}}`, i, bytes.Repeat([]byte("x"), minText))
	}
	meta := func() metav1.ObjectMeta {
		at := metav1.NewTime(time.Unix(1, 0))
		return metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "a", "tier": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &at, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:state":{}}`)}}}
	}
	var applied []*kontrol.AppliedState
	var current []*kontrol.CurrentState
	for i := range 100 {
		a, c := &kontrol.AppliedState{ObjectMeta: meta()}, &kontrol.CurrentState{ObjectMeta: meta()}
		a.State.Object.Raw, a.State.Fields.Raw, c.State.Object.Raw = object(i), object(0), object(i)
		want, wantCurrent := a.DeepCopy(), c.DeepCopy()
		applied, current = append(applied, s.share(a).(*kontrol.AppliedState)), append(current, s.share(c).(*kontrol.CurrentState))
		require.Equal(t, want, applied[i])
		require.Equal(t, wantCurrent, current[i])
	}
	for i := range applied {
		require.Same(t, unsafe.SliceData(applied[i].State.Object.Raw), unsafe.SliceData(current[i].State.Object.Raw), i)
		require.Same(t, unsafe.SliceData(applied[0].State.Fields.Raw), unsafe.SliceData(applied[i].State.Fields.Raw), i)
		require.Same(t, &applied[0].ManagedFields[0], &current[i].ManagedFields[0], i)
	}

	// Another time, another content and other labels are others.
	other := &kontrol.Resource{ObjectMeta: meta()}
	later := metav1.NewTime(time.Unix(2, 0))
	other.ManagedFields[0].Time, other.Labels["tier"] = &later, "c"
	want := other.DeepCopy()
	require.Equal(t, want, s.share(other))
	require.NotSame(t, &applied[0].ManagedFields[0], &other.ManagedFields[0])

	// What nobody has any more, as those above are not used below, is not kept.
	require.Eventually(t, func() bool {
		runtime.GC()
		for _, left := range s.texts {
			if left.first.Value() != nil {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)

	// The memory is bounded.
	for i := range maxTexts + 10 {
		s.text(object(i))
	}
	require.LessOrEqual(t, len(s.texts), maxTexts)
}
