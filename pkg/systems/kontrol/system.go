// Package kontrol is the system of desired, applied and current state: objects of many clusters, kept as they should be
// from one hub.
//
// Its invariant: an object of a cluster is changed only in the fields that its Resource has.
package kontrol

import (
	"cmp"

	rbacv1 "k8s.io/api/rbac/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundlecontroller"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/controller"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// New returns the system.
func New(system.Host) system.System {
	hub := pull.NewHub()
	return system.System{
		Name:      "kontrol",
		Extension: own.Extension{Kinds: kinds(hub)},
		Reconcilers: func(c system.Controllers) []*engine.Reconciler {
			reach := c.ClientFor("system:serviceaccount:kube-system:" + controller.Account)
			list := controller.New(reach, cmp.Or(c.ServerVersion, version.Info().GitVersion), hub, c.SourceNamespaces)
			return append(list, bundlecontroller.New(bundlecontroller.Registries{}, c.SourceNamespaces))
		},
		Definitions: Definitions,
		Rights:      Rights,
	}
}

// Rights returns what the reconcilers need on an API server other than ours: nothing of the clusters that Resources are
// for, which they reach with the credentials of those clusters.
func Rights() []rbacv1.PolicyRule {
	return own.Together(kontrol.ClusterRights, kontrol.ResourceRights, kontrol.StateRights, kontrol.CurrentRights, kontrol.BundleRights)
}
