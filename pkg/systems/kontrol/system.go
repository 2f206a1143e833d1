// Package kontrol assembles the system Kontrol: one hub keeps objects on many clusters in their desired state and
// records their applied and current state.
//
// Its invariant: Kontrol changes only those fields of an object that its Resource sets.
package kontrol

import (
	"cmp"
	"embed"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundlecontroller"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/commands"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/controller"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

//go:embed manual
var pages embed.FS

// New returns the system.
func New() system.System {
	hub := pull.NewHub()
	rows := kinds(hub)
	return system.System{
		Name:      "kontrol",
		Extension: own.Extension{Kinds: rows},
		Reconcilers: func(c system.Controllers) []*engine.Reconciler {
			reach := c.ClientFor("system:serviceaccount:kube-system:" + controller.Account)
			list := controller.New(reach, cmp.Or(c.ServerVersion, version.Info().GitVersion), hub, c.SourceNamespaces)
			return append(list, bundlecontroller.New(bundlecontroller.Registries{}, c.SourceNamespaces))
		},
		Operator: &system.Operator{
			Short: "Kontrol: objects of many clusters as they should be", Listen: "127.0.0.1:10262",
			Sources: true, Advice: advice,
		},
		Commands:      commands.New(own.Resources(rows)),
		Manual:        pages,
		AgentCommands: []*cobra.Command{commands.Agent()},
	}
}

const advice = "# For a Cluster with spec.local, which is this API server itself, also bind the account to a role " +
	"that may read " +
	"and write the objects of your Resources.\n"
