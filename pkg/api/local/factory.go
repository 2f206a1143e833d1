package local

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// factory is a client-go informer factory on the shared cache, for the groups that admission plugins use.
// client-go's own factory would link code for some 150 kinds: a tenth of the binary. The embedded interface is nil,
// so a plugin that uses another group panics when it is initialized: add the group here.
type factory struct {
	informers.SharedInformerFactory
	clients *Clients
	rows    map[reflect.Type]*kind.Resource

	mu     sync.Mutex
	absent map[reflect.Type]toolscache.SharedIndexInformer
}

func (s *Clients) newFactory() informers.SharedInformerFactory {
	f := &factory{
		clients: s,
		rows:    map[reflect.Type]*kind.Resource{},
		absent:  map[reflect.Type]toolscache.SharedIndexInformer{},
	}
	for _, r := range s.kinds.Table().All() {
		if r.Proto {
			f.rows[reflect.TypeOf(r.New())] = r
		}
	}
	return f
}

// InformerFor returns the shared informer of a kind in the table. For other kinds it returns an informer without
// objects and without a client, which cannot be started.
func (f *factory) InformerFor(obj runtime.Object,
	make internalinterfaces.NewInformerFunc) toolscache.SharedIndexInformer {
	t := reflect.TypeOf(obj)
	if r := f.rows[t]; r != nil {
		return f.clients.informer(r, native)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.absent[t]
	if i == nil {
		i = make(nil, 0)
		f.absent[t] = i
	}
	return i
}

// InformerName returns nil: the informers have no metrics.
func (f *factory) InformerName() *toolscache.InformerName { return nil }

// Start does nothing: the server maintains the cache.
func (f *factory) Start(<-chan struct{}) {}

// StartWithContext does nothing, like Start.
func (f *factory) StartWithContext(context.Context) {}

// ForResource returns the informer of any kind that is served now.
func (f *factory) ForResource(gvr schema.GroupVersionResource) (informers.GenericInformer, error) {
	r := f.clients.kinds.Table().ByGVR(gvr)
	if r == nil {
		return nil, fmt.Errorf("no informer found for %v", gvr)
	}
	return generic{f.clients.informer(r, native), r.GR()}, nil
}

// generic pairs an informer with its lister.
type generic struct {
	informer toolscache.SharedIndexInformer
	resource schema.GroupResource
}

func (g generic) Informer() toolscache.SharedIndexInformer { return g.informer }
func (g generic) Lister() toolscache.GenericLister {
	return toolscache.NewGenericLister(g.informer.GetIndexer(), g.resource)
}

func (f *factory) Core() core.Interface             { return core.New(f, "", nil) }
func (f *factory) Discovery() discovery.Interface   { return discovery.New(f, "", nil) }
func (f *factory) Networking() networking.Interface { return networking.New(f, "", nil) }
func (f *factory) Node() node.Interface             { return node.New(f, "", nil) }
func (f *factory) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }
func (f *factory) Storage() storage.Interface       { return storage.New(f, "", nil) }
func (f *factory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}
