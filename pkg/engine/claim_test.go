package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestClaim(t *testing.T) {
	pod := func(name, app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}}}
	}
	names := func(all []*corev1.Pod) (out []string) {
		for _, p := range all {
			out = append(out, p.Name)
		}
		return out
	}
	gone, going := pod("gone", "web"), pod("going", "x")
	gone.DeletionTimestamp, going.DeletionTimestamp = &metav1.Time{}, &metav1.Time{}
	owned := []*corev1.Pod{pod("b", "web"), pod("other", "x"), pod("unfit", "web"), going}
	orphans := []*corev1.Pod{pod("a", "web"), gone, pod("y", "y"), pod("unfit", "web")}
	selector := labels.SelectorFromSet(labels.Set{"app": "web"})
	fit := func(p *corev1.Pod) bool { return p.Name != "unfit" }
	owner := aPod()
	c := Claim(owner, owned, orphans, selector, fit)
	require.Equal(t, []string{"b", "a"}, names(c.All))
	require.Equal(t, []string{"a"}, names(c.Adopt))
	require.Equal(t, []string{"other", "unfit"}, names(c.Release))

	owner.DeletionTimestamp = &metav1.Time{}
	c = Claim(owner, owned, orphans, selector, fit)
	require.Equal(t, []string{"b"}, names(c.All))
	require.Empty(t, c.Adopt)
	require.Empty(t, c.Release)
}
