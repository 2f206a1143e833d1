package podstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTemplateHash checks that the hash equals upstream's, since upstream may have named existing sets.
func TestTemplateHash(t *testing.T) {
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1.25", Command: []string{"a"}}}},
	}
	one := int32(1)
	require.Equal(t, "844cd55cd", TemplateHash(&template, nil)) // computed with upstream's ComputeHash
	require.Equal(t, "5c76fbf879", TemplateHash(&template, &one))
}
