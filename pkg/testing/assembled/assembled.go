// Package assembled provides tests with the kinds and roles of a server with all systems.
package assembled

import (
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems"
)

// Systems returns all systems, without a server.
var Systems = sync.OnceValue(func() systems.List { return systems.All() })

// Kinds returns the table of all kinds, created on first use.
var Kinds = sync.OnceValue(func() *kind.Table { return builtin.Table(Systems().Extensions()...) })

// Roles returns new copies of the roles and bindings of all systems.
func Roles() []client.Object {
	all := systems.All()
	return builtin.Roles(all.Accounts(), all.Extensions()...)
}
