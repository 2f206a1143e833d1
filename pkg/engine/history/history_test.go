package history

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func template() *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1.25", Command: []string{"a"}}}},
	}
}

// TestRevisionsAreUpstreams checks that data and names equal upstream's StatefulSet controller's, because
// either may take over revisions from the other.
func TestRevisionsAreUpstreams(t *testing.T) {
	data, err := Data(template())
	require.NoError(t, err)
	require.Equal(t, `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web","tier":"front"}},`+
		`"spec":{"containers":[{"command":["a"],"image":"nginx:1.25","name":"c","resources":{}}]}}}}`, string(data))
	require.Equal(t, "c6b7ddc49", Hash(data, 0)) // computed with upstream's HashControllerRevision
	require.Equal(t, "c6b7ddc4b", Hash(data, 3))

	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "default",
			Name:        "web",
			UID:         "u",
			Annotations: map[string]string{"kubernetes.io/change-cause": "why"},
		},
	}
	r := New(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"), template(), data, 7, HashLabel, Hash(data, 0))
	require.Equal(t, "web-c6b7ddc49", r.Name)
	require.Equal(t, "c6b7ddc49", r.Labels[HashLabel])
	require.Equal(t, "why", r.Annotations["kubernetes.io/change-cause"])
	back, err := Template(r)
	require.NoError(t, err)
	require.Equal(t, template(), back)
}

func TestSplitComparesTheMeaning(t *testing.T) {
	data, err := Data(template())
	require.NoError(t, err)
	older := `{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"web","tier":"front"}},` +
		`"spec":{"containers":[{"command":["a"],"image":"nginx:1.25","name":"c","resources":{}}]}}}}`
	make := func(raws ...string) (all []*appsv1.ControllerRevision) {
		for i, raw := range raws {
			all = append(all, &appsv1.ControllerRevision{Revision: int64(i + 1), Data: runtime.RawExtension{Raw: []byte(raw)}})
		}
		return all
	}
	for name, c := range map[string]struct {
		all          []*appsv1.ControllerRevision
		current, old []int64
	}{
		"none": {
			all: make(`{}`, `[`, `{"spec":{"template":{"spec":{"containers":[]}}}}`), old: []int64{1, 2, 3},
		},
		"the same, twice":             {all: make(string(data), `{}`, string(data)), current: []int64{1, 3}, old: []int64{2}},
		"latest equivalent one":       {all: make(older, older, `{}`), current: []int64{2}, old: []int64{1, 3}},
		"identical before equivalent": {all: make(string(data), older), current: []int64{1}, old: []int64{2}},
	} {
		t.Run(name, func(t *testing.T) {
			numbers := func(all []*appsv1.ControllerRevision) (out []int64) {
				for _, r := range all {
					out = append(out, r.Revision)
				}
				return out
			}
			current, old := Split(c.all, template(), data)
			require.Equal(t, c.current, numbers(current))
			require.Equal(t, c.old, numbers(old))
		})
	}
}

func TestForgottenRevisions(t *testing.T) {
	make := func(name string, number int64) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: number}
	}
	all := []*appsv1.ControllerRevision{make("4", 4), make("2", 2), make("1", 1), make("3", 3)}
	names := func(all []*appsv1.ControllerRevision) (out []string) {
		for _, r := range all {
			out = append(out, r.Name)
		}
		return out
	}
	Sort(all)
	require.Equal(t, []string{"1", "2", "3", "4"}, names(all))
	require.EqualValues(t, 5, Next(all))
	live := func(r *appsv1.ControllerRevision) bool { return r.Name == "1" || r.Name == "4" }
	require.Equal(t, []string{"2"}, names(Excess(all, 1, live)))
	require.Empty(t, Excess(all, 2, live))
}
