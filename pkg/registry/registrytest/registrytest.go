// Package registrytest runs a registry over a real store and cache for tests of what stands on it.
//
// It may import everything from store to admission; only tests import it, and those of package registry itself cannot.
package registrytest

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-dev/coracle/pkg/admission"
	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/local"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/kind/builtin"
	"github.com/coracle-dev/coracle/pkg/registry"
	"github.com/coracle-dev/coracle/pkg/run"
	"github.com/coracle-dev/coracle/pkg/store"
)

// Options of Start. The zero value is a registry with the admission plugins that are on by default.
type Options struct {
	RingSize int // of the cache; 0 is its default
	// NoPlugins leaves out all plugins; else Plugins chooses among them.
	NoPlugins bool
	Plugins   admission.Plugins
}

// Engine is a running store and cache with a registry over them. It has no namespaces yet.
type Engine struct {
	Kinds    *kind.Catalog
	Store    *store.Store
	Cache    *cache.Cache
	Registry *registry.Registry
	Clients  *local.Clients
}

// Start runs an engine until the test has ended. The cache is loaded.
func Start(t testing.TB, o Options) *Engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "coracle-registry-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &Engine{}
	e.Store, err = store.New(store.Config{Dir: dir})
	require.NoError(t, err)
	e.Kinds = kind.NewCatalog(builtin.Kinds())
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
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run.All(ctx, run.Observer{}, e.Store, e.Cache) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case <-e.Cache.Ready():
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return e
}

// As is the client of a user with all rights.
func (e *Engine) As(name string) client.Interface {
	return e.Clients.For(&user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}})
}
