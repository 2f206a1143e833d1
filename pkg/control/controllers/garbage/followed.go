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
	// maxElsewhere is how many objects of one kind are followed in another server, and maxHeld how much memory all that
	// are followed in one server may take, in bytes, as weight estimates it. A kind with more is not collected, until its
	// APIService is created anew or the process starts again.
	maxElsewhere = 100_000
	maxHeld      = 256 << 20
	// pageSize is how many objects are asked for at once, and maxPages how many answers are read for a list, which may
	// have fewer.
	pageSize = 500
	maxPages = 4 * maxElsewhere / pageSize
	// maxLists is how many lists of one server are read at the same time. Others wait.
	maxLists = 2
)

var errTooMany = errors.New("there are too many objects of this kind")

// limits are maxElsewhere and maxHeld.
type limits struct {
	objects int
	bytes   int64
}

// other is a kind of another server, with its objects as they were last seen.
type other struct {
	aggregated.Remote
	objects toolscache.Store
	stop    context.CancelFunc
	load    *load
	listed  bool  // others.mu guards it
	count   int   // only the informer's handler has it
	share   share // load.mu guards it
}

// start follows a kind until ctx ends or it has too many objects. The caller holds the lock.
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
	_ = informer.SetTransform(slim) // it fails only for informers that were started
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

// handler reports each change, and stops following a kind that has too many objects.
func (o *others) handler(ctx context.Context, f *other) toolscache.ResourceEventHandler {
	see := func(was, is any) { // one after the other
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

// tooMany stops following a kind for good, and nothing is known of it any more.
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

// end takes what was followed for gone, as far as others wait for it. They are not deleted for that: the kind of their
// owner is unknown.
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

// lister has the informer list. Streamed lists are held by the informer as a whole before anybody may count them.
type lister struct{ *toolscache.ListWatch }

func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// list reads all objects of a kind, in pages, of each only what matters here, until there are too many.
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

// pages reads the objects of a kind in a namespace, "" for all, page by page, and returns the resourceVersion of the
// list.
func (o *others) pages(ctx context.Context, k engine.Kind, namespace string, options metav1.ListOptions,
	see func([]metav1.PartialObjectMetadata) error) (version string, err error) {
	// servers give pages of what is newest alone
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

// slim drops the metadata that does not matter here, which others may fill.
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

// weight estimates what an object takes that was slimmed, with its place in the graph, in bytes.
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
