package registry

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/capabilities"
)

func privilegedPod(name string) *corev1.Pod {
	p := smallPod(name)
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	return p
}

func TestPrivilegedPodsAreAllowedUnlessDenied(t *testing.T) {
	defer func() { capabilities.ResetForTest(); capabilities.Setup(true, 0) }()
	capabilities.ResetForTest()
	h := build(t)
	put(h, v1("Pod", ""), privilegedPod("p"))

	capabilities.ResetForTest()
	cfg := h.cfg
	cfg.DenyPrivileged = true
	strict, err := New(cfg)
	require.NoError(t, err)
	_, err = strict.Create(h.ctx, v1("Pod", ""), privilegedPod("q"), metav1.CreateOptions{})
	requireStatus(t, err, 422, "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy")
}
