package apiserver

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/stretchr/testify/require"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// TestOwnGroupsComeLast: clients that search a plural find a user's kind before Coracle's of the same name.
func TestOwnGroupsComeLast(t *testing.T) {
	gv := schema.GroupVersion{Group: "zebra.example.com", Version: "v1"}
	remote := &Remote{GroupVersion: gv, Resources: []metav1.APIResource{{Name: "tasks", Kind: "Task"}}}
	local := newDiscovery(assembled.Kinds())
	merged := local.with(&remotes{order: []*Remote{remote}}, func(schema.GroupVersion) bool { return false })
	for name, d := range map[string]*discovery{"local": local, "with another server": merged} {
		t.Run(name, func(t *testing.T) {
			var groups, aggregated []string
			for _, g := range d.groups {
				groups = append(groups, g.Name)
			}
			for _, g := range d.named.list.Items {
				aggregated = append(aggregated, g.Name)
			}
			require.Equal(t, groups, aggregated)
			own := 0
			for _, g := range groups {
				if strings.HasSuffix(g, "coracle.dev") || g == buildbarn.GroupVersion.Group {
					own++
				} else {
					require.Zero(t, own, "%s comes after a group of Coracle: %v", g, groups)
				}
			}
			require.Positive(t, own)
			require.Equal(t, d == merged, strings.Contains(strings.Join(groups, " "), gv.Group))
		})
	}
}
