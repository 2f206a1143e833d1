package builtin

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kubectl/pkg/util/prune"

	"k8s.io/apimachinery/pkg/api/meta"
)

// kubectl maps every kind of its default prune list before it prunes any.
func TestKubectlCanPrune(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, r := range Kinds().All() {
		scope := meta.RESTScopeNamespace
		if !r.Namespaced {
			scope = meta.RESTScopeRoot
		}
		mapper.AddSpecific(r.GroupVersionKind, r.GVR(), r.GroupVersion().WithResource(r.Singular), scope)
	}
	namespaced, others, err := prune.GetRESTMappings(mapper, nil, false)
	require.NoError(t, err)
	require.Len(t, namespaced, 14)
	require.Len(t, others, 2)
	for _, m := range append(namespaced, others...) {
		require.Subset(t, Kinds().ByGVR(m.Resource).Verbs, []string{"delete", "get", "list", "watch"}, m.Resource)
	}
}
