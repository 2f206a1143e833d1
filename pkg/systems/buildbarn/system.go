// Package buildbarn is the system for Buildbarn farms: remote execution and caching for Bazel and similar build tools.
// Its invariant: this process evaluates no configuration of a farm; a child process checks them.
package buildbarn

import (
	"embed"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/packed"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/commands"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/controller"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

//go:embed manual
var pages embed.FS

// New returns the system.
func New() system.System {
	rows := kinds()
	return system.System{
		Name:      "buildbarn",
		Extension: own.Extension{Kinds: rows},
		Reconcilers: func(system.Controllers) []*engine.Reconciler {
			return controller.New(metrics.Read, check.New(packed.Open))
		},
		Operator: &system.Operator{Short: "Remote-execution farms of Buildbarn", Listen: "127.0.0.1:10261"},
		Commands: commands.New(own.Resources(rows)),
		Manual:   pages,
	}
}
