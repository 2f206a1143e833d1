package kontrol_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
)

// TestScopesOfKubernetesKinds compares Kontrol's list of scopes with the kinds that this program serves.
func TestScopesOfKubernetesKinds(t *testing.T) {
	for _, r := range builtin.Table().All() {
		if strings.Contains(r.Group, "snapshot.storage") {
			continue // custom resources elsewhere
		}
		namespaced, known := kontrol.ScopeOf(r.Group, r.Kind)
		require.True(t, known, r.GroupVersionKind)
		require.Equal(t, r.Namespaced, namespaced, r.GroupVersionKind)
	}
}
