package nodeselector

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"pgregory.net/rapid"
)

// TestAsUpstream compares with upstream's package for arbitrary pods and nodes, including invalid ones.
func TestAsUpstream(t *testing.T) {
	word := rapid.SampledFrom([]string{"a", "b", "c", "1", "2", "-"})
	labels := rapid.MapOfN(word, word, 0, 4)
	operator := rapid.SampledFrom([]corev1.NodeSelectorOperator{
		corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist,
		corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt, "Like",
	})
	label := rapid.Custom(func(t *rapid.T) corev1.NodeSelectorRequirement {
		r := corev1.NodeSelectorRequirement{Key: word.Draw(t, "key"), Operator: operator.Draw(t, "operator")}
		if r.Operator != corev1.NodeSelectorOpExists && r.Operator != corev1.NodeSelectorOpDoesNotExist {
			r.Values = rapid.SliceOfN(word, 1, 2).Draw(t, "values")
		}
		return r
	})
	field := rapid.Custom(func(t *rapid.T) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{
			Key:      metav1.ObjectNameField,
			Operator: operator.Draw(t, "operator"),
			Values:   []string{word.Draw(t, "name")},
		}
	})
	term := rapid.Custom(func(t *rapid.T) corev1.NodeSelectorTerm {
		out := corev1.NodeSelectorTerm{
			MatchExpressions: rapid.SliceOfN(label, 0, 3).Draw(t, "labels"),
			MatchFields:      rapid.SliceOfN(field, 0, 1).Draw(t, "fields"),
		}
		for range rapid.SampledFrom([]int{0, 0, chunk, 2*chunk + 1}).Draw(t, "more") {
			out.MatchExpressions = append(out.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: "none", Operator: corev1.NodeSelectorOpDoesNotExist,
			})
		}
		return out
	})
	rapid.Check(t, func(t *rapid.T) {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: rapid.MapOfN(word, word, 0, 1).Draw(t, "selector")}}
		if rapid.Bool().Draw(t, "affinity") {
			p.Spec.Affinity = &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: rapid.SliceOfN(term, 0, 3).Draw(t, "terms")}},
			}
		}
		var preferred []corev1.PreferredSchedulingTerm
		for range rapid.IntRange(0, 2).Draw(t, "preferences") {
			preferred = append(preferred, corev1.PreferredSchedulingTerm{
				Weight: rapid.Int32Range(0, 9).Draw(t, "weight"), Preference: term.Draw(t, "preference"),
			})
		}
		ours, ourErr := PreferredOf(preferred)
		theirs, theirErr := nodeaffinity.NewPreferredSchedulingTerms(preferred)
		require.Equal(t, theirErr == nil, ourErr == nil)
		for range 4 {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: word.Draw(t, "node"), Labels: labels.Draw(t, "of the node")}}
			want, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n)
			require.Equal(t, want && err == nil, RequiredOf(p.Spec.NodeSelector, p.Spec.Affinity).Match(n))
			if theirErr == nil {
				require.Equal(t, theirs.Score(n), ours.Score(n))
			}
		}
	})
}

// TestManyRequirements: ten times as many requirements take about ten times as long, not a thousand times.
func TestManyRequirements(t *testing.T) {
	runtime.LockOSThread() // its processor time does not depend on other programs
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var at unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at))
		return time.Duration(at.Nano())
	}
	took := func(n int) time.Duration {
		var of corev1.NodeSelectorTerm
		for i := range n {
			of.MatchExpressions = append(of.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: fmt.Sprint("key", i), Operator: corev1.NodeSelectorOpDoesNotExist,
			})
		}
		least := time.Hour
		for range 3 {
			began := used()
			parsed, err := parse(&of)
			require.NoError(t, err)
			require.True(t, parsed.match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}))
			least = min(least, used()-began)
		}
		return least
	}
	few, many := took(2000), took(20_000)
	t.Log(few, many)
	require.Less(t, many, 40*few)
}
