// Package local implements client.Interface in process: its clients read the server's cache by pointer, and write to
// the Registry without a socket. Its invariants: objects from the cache are immutable below the outermost struct,
// the result of a write is the caller's own copy, and a write returns only once the cache shows it.
package local

import (
	"maps"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// Clients creates in-process clients of a Registry, which share informers and indexes. It is safe for concurrent
// use.
type Clients struct {
	registry *registry.Registry
	cache    *cache.Cache
	kinds    *kind.Catalog
	mapper   func() meta.RESTMapper
	scheme   *runtime.Scheme
	factory  func() informers.SharedInformerFactory

	mu        sync.Mutex
	informers map[informerKey]*informer
	indexes   map[indexKey]func(ctrl.Object) []string
}

type indexKey struct {
	storage *kind.Storage
	name    string
}

// New returns the clients of a registry, its cache and its kinds. It starts nothing.
func New(r *registry.Registry, c *cache.Cache, kinds *kind.Catalog) *Clients {
	s := &Clients{registry: r, cache: c, kinds: kinds,
		mapper:    kind.Derive(kinds, mapperOf),
		scheme:    schemeOf(kinds.Table()),
		informers: map[informerKey]*informer{},
		indexes:   map[indexKey]func(ctrl.Object) []string{}}
	s.factory = sync.OnceValue(s.newFactory)
	return s
}

// For returns the client of one identity. Objects from the cache are immutable below the outermost struct. The
// result of a write is the caller's own copy.
func (s *Clients) For(u user.Info) client.Interface {
	c := &userClient{Clients: s, user: u}
	c.own = &clientCache{userClient: c, regs: map[*registration]struct{}{}}
	return c
}

// Informers returns client-go's factory on the shared cache, for the listers of admission plugins. It has the groups
// core, discovery, scheduling, storage and admissionregistration, and need not be started. Informers of kinds that
// are not served deliver no events.
func (s *Clients) Informers() informers.SharedInformerFactory { return s.factory() }

// Done is closed when the cache, and with it every informer, has ended.
func (s *Clients) Done() <-chan struct{} { return s.cache.Done() }

// addIndex adds an index unless it exists. A name has the same meaning for all clients.
func (s *Clients) addIndex(row *kind.Resource, name string, f func(ctrl.Object) []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := indexKey{row.Storage, name}
	if s.indexes[k] != nil {
		return nil
	}
	if unpack := row.Unpack; unpack != nil {
		values := f
		f = func(o ctrl.Object) []string { return values(unpack(o)) }
	}
	if err := s.cache.AddIndex(row, name, f); err != nil {
		return err
	}
	if t := s.kinds.Table(); len(s.indexes) > 4*len(t.All())+maxUnheld {
		maps.DeleteFunc(s.indexes, func(k indexKey, _ func(ctrl.Object) []string) bool { return !t.Holds(k.storage) })
	}
	s.indexes[k] = f
	return nil
}

func (s *Clients) index(row *kind.Resource, name string) func(ctrl.Object) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes[indexKey{row.Storage, name}]
}

func version(rev int64) string { return strconv.FormatInt(rev, 10) }

// schemeOf returns a scheme with the Go types of a Table. Kinds that are added later have no Go type.
func schemeOf(t *kind.Table) *runtime.Scheme {
	known := client.Scheme()
	var more *runtime.Scheme
	for _, r := range t.All() {
		if r.Unstructured() || known.Recognizes(r.GroupVersionKind) {
			continue
		}
		if more == nil {
			more = client.NewScheme()
		}
		more.AddKnownTypeWithName(r.GroupVersionKind, r.New())
		more.AddKnownTypeWithName(r.GroupVersion().WithKind(r.Kind+"List"), r.NewList())
		metav1.AddToGroupVersion(more, r.GroupVersion())
	}
	if more == nil {
		return known
	}
	return more
}

func mapperOf(t *kind.Table) meta.RESTMapper {
	var versions []schema.GroupVersion
	for _, r := range t.All() {
		if v := r.GroupVersion(); !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	m := meta.NewDefaultRESTMapper(versions)
	for _, r := range t.All() {
		scope := meta.RESTScopeRoot
		if r.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		m.AddSpecific(r.GroupVersionKind, r.GVR(), r.GroupVersion().WithResource(r.Singular), scope)
	}
	return m
}
