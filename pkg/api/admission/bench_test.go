package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkPlugins creates a pod as a dry run, with and without upstream's plugins. The difference is their cost.
func BenchmarkPlugins(b *testing.B) {
	bench := func(b *testing.B, h *env) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := h.Create(h.ctx, v1("Pod", ""), smallPod("p"), metav1.CreateOptions{
				DryRun: []string{metav1.DryRunAll},
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	h := build(b)
	b.Run("without", func(b *testing.B) { bench(b, h) })
	require.NoError(b, h.install(Plugins{}))
	put(h, v1("ServiceAccount", ""), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "work"},
	})
	b.Run("with", func(b *testing.B) { bench(b, h) })
}
