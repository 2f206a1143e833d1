package garbage

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientmetadata "k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

const (
	// maxWaiting is how many objects with owners of unknown kinds are remembered until their owner's kind becomes
	// known. Further objects are reconciled only when they change.
	maxWaiting = 10_000
	// askTimeout limits one request to an aggregated API server, which may hang.
	askTimeout = 10 * time.Second
)

// others watches the objects in aggregated API servers. A server that does not answer blocks nothing: the last
// state of its objects stays in use.
type others struct {
	aggregated.Remotes
	client clientmetadata.Interface
	log    *slog.Logger
	// event is called for each change: was is nil for an addition, is for a deletion.
	event   func(gvk schema.GroupVersionKind, was, is client.Object)
	enqueue func(engine.Request)

	most limits

	mu      sync.Mutex
	kinds   map[schema.GroupKind]*other
	loads   map[string]*load                     // by server
	over    map[aggregated.Remote]bool           // kinds with too many objects, which are not watched
	ending  map[schema.GroupKind]<-chan struct{} // closed when the last informer of the kind has ended
	waiting map[object]schema.GroupKind          // objects with an owner of an unknown kind, and that kind
	first   firstLists
}

// newOthers watches aggregated API servers while the reconciler runs. It returns nil if elsewhere is nil.
func newOthers(env engine.Env, g *graph, elsewhere aggregated.Remotes) *others {
	if elsewhere == nil {
		return nil
	}
	reach, err := elsewhere.Metadata()
	if err != nil {
		env.Log.Error("could not follow aggregated API servers, garbage in them is not collected", "error", err)
		return nil
	}
	o := makeOthers(elsewhere, reach, env.Log, env.Now, func(req engine.Request) { env.Enqueue(req, 0) }, g)
	env.Go(o.follow)
	return o
}

func makeOthers(elsewhere aggregated.Remotes, reach clientmetadata.Interface, log *slog.Logger, now func() time.Time,
	enqueue func(engine.Request), g *graph) *others {
	o := &others{
		Remotes: elsewhere, client: reach, log: log, enqueue: enqueue, most: limits{objects: maxElsewhere, bytes: maxHeld},
		first: firstLists{now: now, until: now().Add(patience), waiting: map[object]bool{}},
		kinds: map[schema.GroupKind]*other{}, loads: map[string]*load{}, over: map[aggregated.Remote]bool{},
		ending:  map[schema.GroupKind]<-chan struct{}{},
		waiting: map[object]schema.GroupKind{},
	}
	o.event = func(gvk schema.GroupVersionKind, was, is client.Object) {
		o.notice(gvk, was, is)
		for _, req := range g.see(gvk, was, is) {
			enqueue(req)
		}
	}
	return o
}

// of returns a watched kind of an aggregated API server, or nil.
func (o *others) of(gk schema.GroupKind) *other {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kinds[gk]
}

func (o *others) all() (list []*other) {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.kinds))
}

// follow keeps the watched kinds up to date until ctx ends.
func (o *others) follow(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		kinds, all, changed := o.Served()
		o.update(ctx, kinds, all, &running)
		o.listed()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// update starts to watch new kinds and stops watching removed ones. all is false while some servers have not
// answered yet.
func (o *others) update(ctx context.Context, kinds []aggregated.Remote, all bool, running *sync.WaitGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.first.described = all
	present, listed, servers := map[schema.GroupKind]bool{}, map[aggregated.Remote]bool{}, map[string]bool{}
	for _, k := range kinds {
		gk := k.GroupKind()
		listed[k], servers[k.Server] = true, true
		if !k.Deletable || present[gk] || o.over[k] {
			continue
		}
		present[gk] = true
		if was := o.kinds[gk]; was != nil {
			if was.Remote == k {
				continue
			}
			was.stop()
		}
		o.kinds[gk] = o.start(ctx, k, running)
	}
	for gk, k := range o.kinds {
		if !present[gk] {
			k.stop()
			delete(o.kinds, gk)
		}
	}
	maps.DeleteFunc(o.over, func(k aggregated.Remote, _ bool) bool { return !listed[k] })
	maps.DeleteFunc(o.loads, func(server string, _ *load) bool { return !servers[server] })
}

// await remembers an object whose owner has an unknown kind. It is enqueued when that kind becomes known.
func (o *others) await(gk schema.GroupKind, dependent object) {
	if o == nil {
		return
	}
	o.mu.Lock()
	known := o.kinds[gk] != nil // it has just become known
	if !known && len(o.waiting) < maxWaiting {
		o.waiting[dependent] = gk
	}
	o.mu.Unlock()
	if known {
		o.enqueue(dependent.request())
	}
}

// notice makes others forget an object that was deleted or has lost its owners, because it is not reconciled again.
func (o *others) notice(gvk schema.GroupVersionKind, was, is client.Object) {
	if was != nil && len(was.GetOwnerReferences()) > 0 && (is == nil || len(is.GetOwnerReferences()) == 0) {
		o.forget(object{gvk, was.GetNamespace(), was.GetName()})
	}
}

func (o *others) forget(dependent object) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.waiting, dependent)
}

// known marks a kind as listed, and enqueues the objects that waited for it.
func (o *others) known(f *other) {
	var list []object
	o.mu.Lock()
	f.listed = true
	for dependent, kind := range o.waiting {
		if kind == f.GroupKind() {
			delete(o.waiting, dependent)
			list = append(list, dependent)
		}
	}
	o.mu.Unlock()
	for _, dependent := range list {
		o.enqueue(dependent.request())
	}
	o.listed()
}

func gvrOf(k engine.Kind) schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Resource)
}

// get returns an object's last known state, or nil if it does not exist.
func (k *other) get(namespace, name string) *metav1.PartialObjectMetadata {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	found, _, _ := k.objects.GetByKey(key)
	m, _ := found.(*metav1.PartialObjectMetadata)
	if m == nil {
		return nil
	}
	m = m.DeepCopy()
	m.SetGroupVersionKind(k.GroupVersionKind)
	return m
}

// owned returns the objects with the given owner, as last seen.
func (k *other) owned(by types.UID) (out []object) {
	for _, o := range k.objects.List() {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok &&
			slices.ContainsFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == by }) {
			out = append(out, object{k.GroupVersionKind, m.Namespace, m.Name})
		}
	}
	return out
}

func (o *others) at(k engine.Kind, namespace string) clientmetadata.ResourceInterface {
	return o.client.Resource(gvrOf(k)).Namespace(namespace) // cluster-scoped kinds have the namespace ""
}

func (o *others) read(ctx context.Context, k *other, at object) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return o.at(k.Kind, at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
}

func (o *others) patch(ctx context.Context, k engine.Kind, m *metav1.PartialObjectMetadata, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := o.at(k, m.Namespace).Patch(ctx, m.Name, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}

// remove deletes an object if it is unchanged since it was read.
func (o *others) remove(ctx context.Context, k *other, m *metav1.PartialObjectMetadata,
	how metav1.DeletionPropagation) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return o.at(k.Kind, m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion}, PropagationPolicy: &how})
}
