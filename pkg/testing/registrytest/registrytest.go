// Package registrytest runs a registry over a real store and cache for tests of the packages above it.
package registrytest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-dev/coracle/pkg/api/admission"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// Options configures Start. The zero value is a registry with the default admission plugins.
type Options struct {
	// Kinds are the kinds that the registry serves; nil means the built-in kinds, without systems.
	Kinds    *kind.Table
	RingSize int // of the cache; 0 means the default
	// NoPlugins disables all admission plugins; otherwise Plugins selects them.
	NoPlugins bool
	Plugins   admission.Plugins
}

// Engine is a running store and cache with a registry. It starts without namespaces.
type Engine struct {
	Kinds    *kind.Catalog
	Store    *store.Store
	Cache    *cache.Cache
	Registry *registry.Registry
	Clients  *local.Clients
}

// Start runs an engine until the end of the test, and returns when its cache is loaded.
func Start(t testing.TB, o Options) *Engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "coracle-registry-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &Engine{}
	e.Store, err = store.New(store.Config{Dir: dir})
	require.NoError(t, err)
	if o.Kinds == nil {
		o.Kinds = builtin.Kinds()
	}
	e.Kinds = kind.NewCatalog(o.Kinds)
	e.Cache, err = cache.New(cache.Config{Kinds: e.Kinds, Source: e.Store, RingSize: o.RingSize})
	require.NoError(t, err)
	e.Registry, err = registry.New(registry.Config{Kinds: e.Kinds, Store: e.Store, Cache: e.Cache})
	require.NoError(t, err)
	e.Clients = local.New(e.Registry, e.Cache, e.Kinds)
	if o.NoPlugins {
		e.Registry.UseAdmission(upstream.NewChainHandler())
	} else {
		require.NoError(t, admission.Install(o.Plugins, e.Registry, e.Clients))
	}
	runtest.Start(t, e.Store, e.Cache)
	return e
}

// As returns a client for a user with all permissions.
func (e *Engine) As(name string) client.Interface {
	return e.Clients.For(&user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}})
}
