// Package apis lists the API groups of Coracle's own kinds.
//
// Its invariant: AddToScheme adds the Go types of all of Coracle's own kinds.
package apis

import (
	"k8s.io/apimachinery/pkg/runtime"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// AddToScheme adds the Go types of all groups to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	groups := runtime.NewSchemeBuilder(
		snapshots.AddToScheme,
		tasks.AddToScheme,
		workers.AddToScheme,
		kontrol.AddToScheme,
		buildbarn.AddToScheme,
	)
	return groups.AddToScheme(s)
}
