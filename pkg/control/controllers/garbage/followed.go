package garbage

import (
	"context"
	"errors"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

const (
	// maxElsewhere is the maximum number of watched objects of one kind. maxHeld is the maximum memory in bytes
	// for the watched objects of one server, as weight estimates it. A kind that exceeds a limit is not collected
	// until its APIService is recreated or the process restarts.
	maxElsewhere = 100_000
	maxHeld      = 256 << 20
	// pageSize is the number of objects per request. maxPages is the maximum number of pages in a list: servers
	// may return smaller pages.
	pageSize = 500
	maxPages = 4 * maxElsewhere / pageSize
	// maxLists is how many lists of one server are read at the same time.
	maxLists = 2
)

var errTooMany = errors.New("there are too many objects of this kind")

// limits holds maxElsewhere and maxHeld, or smaller values in tests.
type limits struct {
	objects int
	bytes   int64
}

type other struct {
	aggregated.Remote
	objects toolscache.Store
	stop    context.CancelFunc
	load    *load
	listed  bool  // guarded by others.mu
	count   int   // used only by the informer's handler
	share   share // guarded by load.mu
}

// start watches a kind until ctx ends or the kind has too many objects. The caller must hold o.mu.
func (o *others) start(ctx context.Context, k aggregated.Remote, running *sync.WaitGroup) *other {
	all := ctx
	ctx, stop := context.WithCancel(ctx)
	if o.loads[k.Server] == nil {
		o.loads[k.Server] = &load{lists: make(chan struct{}, maxLists)}
	}
	f := &other{Remote: k, stop: stop, load: o.loads[k.Server]}
	informer := toolscache.NewSharedIndexInformer(lister{&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return o.list(ctx, f, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return o.at(f.Kind, metav1.NamespaceAll).Watch(ctx, options)
		},
	}}, &metav1.PartialObjectMetadata{}, 0, toolscache.Indexers{})
	f.objects = informer.GetStore()
	_ = informer.SetTransform(slim) // it fails only if the informer has started
	_, _ = informer.AddEventHandler(o.handler(ctx, f))
	before, ended := o.ending[k.GroupKind()], make(chan struct{})
	o.ending[k.GroupKind()] = ended
	running.Go(func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		informer.RunWithContext(ctx)
		if all.Err() == nil {
			o.end(f, ended)
		}
	})
	running.Go(func() {
		select {
		case <-informer.HasSyncedChecker().Done():
			o.known(f)
		case <-ctx.Done():
		}
	})
	return f
}

// handler reports each change, and stops watching a kind that has too many objects.
func (o *others) handler(ctx context.Context, f *other) toolscache.ResourceEventHandler {
	see := func(was, is any) { // calls are sequential
		a, _ := was.(*metav1.PartialObjectMetadata)
		b, _ := is.(*metav1.PartialObjectMetadata)
		if ctx.Err() != nil {
			return
		}
		switch {
		case a != nil && b != nil:
			o.event(f.GroupVersionKind, a, b)
		case a != nil:
			o.event(f.GroupVersionKind, a, nil)
			f.count--
		case b != nil:
			o.event(f.GroupVersionKind, nil, b)
			f.count++
		}
		if !f.load.hold(&f.share, weight(b)-weight(a), o.most.bytes) || f.count > o.most.objects {
			o.tooMany(f)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(is any) { see(nil, is) },
		UpdateFunc: see,
		DeleteFunc: func(was any) {
			if d, ok := was.(toolscache.DeletedFinalStateUnknown); ok {
				was = d.Obj
			}
			see(was, nil)
		},
	}
}

// tooMany permanently stops watching a kind.
func (o *others) tooMany(f *other) {
	f.stop()
	f.load.release(&f.share)
	gk := f.GroupKind()
	o.mu.Lock()
	followed := o.kinds[gk] == f
	if followed {
		delete(o.kinds, gk)
		o.over[f.Remote] = true
	}
	o.mu.Unlock()
	if followed {
		o.log.Error("too many objects of a kind in an aggregated API server, they are not collected", "kind",
			f.GroupVersionKind, "most", o.most.objects, "bytes", o.most.bytes)
		o.listed()
	}
}

// end reports the objects of a kind that is no longer watched as gone, so that owners do not wait for them. They
// are not deleted: their own kind is unknown from now on.
func (o *others) end(f *other, ended <-chan struct{}) {
	f.load.release(&f.share)
	for _, was := range f.objects.List() {
		if m, ok := was.(*metav1.PartialObjectMetadata); ok {
			o.event(f.GroupVersionKind, m, nil)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if gk := f.GroupKind(); o.ending[gk] == ended {
		delete(o.ending, gk)
	}
}

// lister disables streamed lists, because the informer would hold a whole list before its size is checked.
type lister struct{ *toolscache.ListWatch }

func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// list reads all objects of a kind in pages. It keeps only the needed metadata, and stops if there are too many
// objects.
func (o *others) list(ctx context.Context, f *other, options metav1.ListOptions) (runtime.Object, error) {
	select {
	case f.load.lists <- struct{}{}:
		defer func() { <-f.load.lists }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer f.load.read(&f.share, 0, o.most.bytes)
	list, size := &metav1.PartialObjectMetadataList{}, int64(0)
	version, err := o.pages(ctx, f.Kind, metav1.NamespaceAll, options, func(items []metav1.PartialObjectMetadata) error {
		for i := range items {
			m := slimmed(&items[i])
			size += weight(m)
			list.Items = append(list.Items, *m)
		}
		if len(list.Items) > o.most.objects || !f.load.read(&f.share, size, o.most.bytes) {
			return errTooMany
		}
		return nil
	})
	if errors.Is(err, errTooMany) {
		o.tooMany(f)
	}
	if err != nil {
		return nil, err
	}
	list.ResourceVersion = version
	return list, nil
}

// pages lists the objects of a kind in a namespace, "" for all, page by page. It returns the list's resourceVersion.
func (o *others) pages(ctx context.Context, k engine.Kind, namespace string, options metav1.ListOptions,
	see func([]metav1.PartialObjectMetadata) error) (version string, err error) {
	// servers paginate only lists of the newest state
	options.Limit, options.ResourceVersion, options.ResourceVersionMatch = pageSize, "", ""
	for range maxPages {
		page, err := o.at(k, namespace).List(ctx, options)
		if err != nil {
			return "", err
		}
		if err := see(page.Items); err != nil {
			return "", err
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return page.ResourceVersion, nil
		}
	}
	return "", errTooMany
}

// slim is the informer's transform. It drops unneeded metadata, whose size other clients control.
func slim(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		return slimmed(m), nil
	}
	return o, nil
}

func slimmed(m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		DeletionTimestamp: m.DeletionTimestamp,
		Finalizers:        m.Finalizers, OwnerReferences: m.OwnerReferences,
	}}
}

// weight estimates the memory of a slimmed object and of its entries in the graph, in bytes.
func weight(m *metav1.PartialObjectMetadata) int64 {
	if m == nil {
		return 0
	}
	n := 512 + len(m.Name) + len(m.Namespace) + len(m.UID) + len(m.ResourceVersion)
	for _, f := range m.Finalizers {
		n += 16 + len(f)
	}
	for i := range m.OwnerReferences {
		r := &m.OwnerReferences[i]
		n += 384 + len(r.APIVersion) + len(r.Kind) + len(r.Name) + len(r.UID)
	}
	return int64(n)
}
