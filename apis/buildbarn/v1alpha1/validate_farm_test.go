package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Settings of a browser that the farm does not have are refused, not ignored.
func TestABrowserNeedsItsImage(t *testing.T) {
	for name, browser := range map[string]FarmBrowser{
		"host": {IngressHost: "bb.example.com"},
		"resources": {Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
		}},
	} {
		b := &Buildbarn{Spec: BuildbarnSpec{Browser: browser}}
		b.Name = "farm"
		DefaultFarm(b)
		require.ErrorContains(t, ValidateFarm(b).ToAggregate(), "spec.images.browser: Required value", name)
		b.Spec.Images.Browser = ImageBrowser
		require.Empty(t, ValidateFarm(b), name)
	}
}
