package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRuntimeClassOfAPod(t *testing.T) {
	h := secured(t, Plugins{})
	overhead := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}
	put(h, at(nodev1.SchemeGroupVersion.WithKind("RuntimeClass"), "", ""), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "sandboxed"}, Handler: "kata", Overhead: &nodev1.Overhead{PodFixed: overhead},
		Scheduling: &nodev1.Scheduling{
			NodeSelector: map[string]string{"kata": "yes"},
			Tolerations:  []corev1.Toleration{{Key: "kata", Operator: corev1.TolerationOpExists}},
		}})

	p := smallPod("a")
	p.Spec.RuntimeClassName, p.Spec.NodeSelector = new("sandboxed"), map[string]string{"disk": "fast"}
	made := put(h, v1("Pod", ""), p)
	require.Equal(t, overhead, made.Spec.Overhead)
	require.Equal(t, map[string]string{"disk": "fast", "kata": "yes"}, made.Spec.NodeSelector)
	require.Contains(t, made.Spec.Tolerations, corev1.Toleration{Key: "kata", Operator: corev1.TolerationOpExists})

	p.Name, p.Spec.NodeSelector = "b", map[string]string{"kata": "no"}
	requireStatus(t, h.try(v1("Pod", ""), p.DeepCopy()), 403,
		"conflict: runtimeClass.scheduling.nodeSelector[kata] = yes; pod.spec.nodeSelector[kata] = no")
	p.Spec.NodeSelector, p.Spec.RuntimeClassName = nil, new("none")
	requireStatus(t, h.try(v1("Pod", ""), p.DeepCopy()), 403, `pod rejected: RuntimeClass "none" not found`)
	p.Spec.RuntimeClassName, p.Spec.Overhead = nil, overhead
	requireStatus(t, h.try(v1("Pod", ""), p.DeepCopy()), 403,
		"pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
}
