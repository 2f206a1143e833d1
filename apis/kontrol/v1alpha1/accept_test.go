package v1alpha1

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

// foreign is a Resource on an API server that has Kontrol's kinds as custom resources: it sets no defaults, and
// each write of the spec increments the generation.
type foreign struct{ Resource }

func newForeign() *foreign {
	f := &foreign{}
	f.Name, f.UID, f.Generation = "r", "u", 1
	f.Spec = ResourceSpec{ClusterName: "c", Template: runtime.RawExtension{Raw: []byte(configMap)}}
	return f
}

func (f *foreign) edit(change func(*ResourceSpec)) {
	change(&f.Spec)
	f.Generation++
}

// settle accepts the Resource as the operator does, until nothing changes, and returns how often it wrote the spec.
func (f *foreign) settle(t require.TestingT) (writes int) {
	for {
		next, errs := Accept(&f.Resource)
		require.Empty(t, errs)
		if f.Spec.Revision != nil && *next.Spec.Revision == *f.Spec.Revision && len(f.Finalizers) == 1 && f.Spec.Mode != "" {
			f.Status = next.Status
			return writes
		}
		if writes++; writes > 1 {
			require.Fail(t, "the spec is written again and again")
		}
		next.Status = f.Status // the status is a separate subresource
		next.Generation++
		f.Resource = *next
	}
}

func (f *foreign) value(v string) {
	f.edit(func(s *ResourceSpec) {
		s.Template.Raw = fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"},"data":{"a":%q}}`, v)
	})
}

// TestAccept checks that Accept turns a Resource from another API server into what Coracle's API server would have
// stored.
func TestAccept(t *testing.T) {
	f := newForeign()
	require.False(t, IsAccepted(&f.Resource))
	require.Equal(t, 1, f.settle(t))
	require.True(t, IsAccepted(&f.Resource))
	require.Equal(t, IDOf("u"), f.Status.ID)
	require.Equal(t, []string{FinalizerTargets}, f.Finalizers)
	require.EqualValues(t, 1, *f.Spec.Revision)
	require.Zero(t, f.settle(t), "nothing has changed")

	f.value("c")
	require.False(t, IsAccepted(&f.Resource))
	f.settle(t)
	require.EqualValues(t, 2, *f.Spec.Revision)
	require.Len(t, f.Status.History, 1)
	require.JSONEq(t, configMap, string(f.Status.History[0].Template.Raw))
	require.EqualValues(t, 1, f.Status.History[0].Revision)

	// The revision can be set, also to a lower value, and is kept if it is not sent.
	f.edit(func(s *ResourceSpec) { s.Revision = new(int64(1)) })
	require.Zero(t, f.settle(t))
	require.EqualValues(t, 1, f.Status.Accepted.Revision)
	f.edit(func(s *ResourceSpec) { s.Revision = nil })
	f.settle(t)
	require.EqualValues(t, 2, *f.Spec.Revision, "another generation without a revision has the next one")

	// Neither an invalid spec nor a template of a different object is accepted.
	f.edit(func(s *ResourceSpec) { s.DependsOn = []string{"r"} })
	_, errs := Accept(&f.Resource)
	require.Contains(t, errs.ToAggregate().Error(), "cannot depend on itself")
	require.False(t, IsAccepted(&f.Resource))
	f.edit(func(s *ResourceSpec) {
		s.DependsOn, s.Template.Raw = nil, []byte(
			`{"apiVersion":"other/v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"}}`)
	})
	_, errs = Accept(&f.Resource)
	require.Contains(t, errs.ToAggregate().Error(), "cannot be changed")
	f.value("d")
	f.settle(t)
	require.EqualValues(t, 3, *f.Spec.Revision)

	own := newResource(nil)
	own.Status.ID = 5
	require.True(t, SelfAccepted(own) && IsAccepted(own), "our own API server has done it")
}

// TestAcceptSettles checks that, after any edits and while the operator is away in between, the revision is at
// least the one that Coracle's API server would have set, and that the history is bounded and in order.
func TestAcceptSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newForeign()
		f.settle(t)
		for range rapid.IntRange(1, 20).Draw(t, "edits") {
			was := *f.Status.Accepted
			set := int64(0)
			for range rapid.IntRange(1, 3).Draw(t, "at once") {
				f.value(rapid.StringMatching("[a-z<>&]{0,5}").Draw(t, "value"))
			}
			if set = rapid.Int64Range(0, 4).Draw(t, "revision"); set > 0 {
				f.edit(func(s *ResourceSpec) { s.Revision = &set })
			}
			f.settle(t)
			want := set
			if set == 0 || set == was.Revision {
				want = was.Revision + 1
			}
			if got := *f.Spec.Revision; got != want || f.Status.Accepted.Revision != want {
				t.Fatalf("the revision is %d, accepted %d, not %d", got, f.Status.Accepted.Revision, want)
			}
			if f.Status.Accepted.Generation != f.Generation || len(f.Status.History) == 0 ||
				f.Status.History[0].Revision != was.Revision || len(f.Status.History) > MaxHistory {
				t.Fatalf("accepted %d of %d, history %v", f.Status.Accepted.Generation, f.Generation, f.Status.History)
			}
		}
	})
}
