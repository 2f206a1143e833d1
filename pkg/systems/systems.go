// Package systems lists the systems of Coracle. Each is a vertical slice in its own folder: kinds, reconcilers, parts
// of the API server and of nodes, and commands.
//
// Its invariant: no package that pkg/systems imports, except the systems themselves, knows the name of a system.
package systems

import (
	"io/fs"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/node/ingress"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol"
	"github.com/coracle-dev/coracle/pkg/systems/rest/identity"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/systems/tasks"
	"github.com/coracle-dev/coracle/pkg/systems/workers"
)

// List holds the systems of one process.
type List []system.System

// All creates all systems.
func All() List {
	return List{
		kontrol.New(),
		buildbarn.New(),
		tasks.New(),
		workers.New(),
		{Name: "rest", Extension: own.Extension{Roles: identity.Roles()}},
	}
}

// Extensions returns the systems' additions to the API.
func (l List) Extensions() []own.Extension {
	list := make([]own.Extension, len(l))
	for i, s := range l {
		list[i] = s.Extension
	}
	return list
}

// Reconcilers returns the reconcilers of all systems.
func (l List) Reconcilers(c system.Controllers) (list []*engine.Reconciler) {
	for _, s := range l {
		if s.Reconcilers != nil {
			list = append(list, s.Reconcilers(c)...)
		}
	}
	return list
}

// Accounts returns the service accounts of all reconcilers.
func (l List) Accounts() (list []own.Account) {
	var rows []*kind.Resource
	for _, s := range l {
		for _, k := range s.Kinds {
			rows = append(rows, k.Row)
		}
	}
	scheme := own.Scheme(rows)
	for _, r := range l.declared() {
		rules, err := r.Rights(scheme)
		if err != nil {
			panic(err) // the declarations are fixed
		}
		list = append(list, own.Account{Name: r.ServiceAccount(), Rules: rules, Further: r.Further})
	}
	return list
}

// Names returns the names of all reconcilers.
func (l List) Names() (names []string) {
	for _, r := range l.declared() {
		names = append(names, r.Name)
	}
	return names
}

// declared returns reconcilers that can only be read, since they have no client.
func (l List) declared() []*engine.Reconciler {
	return l.Reconcilers(system.Controllers{ClientFor: func(string) client.Interface { return nil }})
}

// Parts returns the constructors of the systems' parts of an agent.
func (l List) Parts() (list []func(part.Host) part.Part) {
	for _, s := range l {
		if s.Node != nil {
			list = append(list, s.Node)
		}
	}
	return list
}

// Backends returns the systems' kinds that Ingresses may name as backends.
func (l List) Backends() (list []ingress.Resource) {
	for _, s := range l {
		list = append(list, s.Backends...)
	}
	return list
}

// Pages returns the systems' pages of the manual.
func (l List) Pages() (pages []fs.FS) {
	for _, s := range l {
		if s.Manual != nil {
			pages = append(pages, s.Manual)
		}
	}
	return pages
}
