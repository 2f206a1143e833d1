package garbage

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientmetadata "k8s.io/client-go/metadata"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func remote(kind, resource string) aggregated.Remote {
	return aggregated.Remote{Server: "server", Kind: engine.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "wardle.example.com", Version: "v1", Kind: kind},
		Resource:         resource, Namespaced: true, Deletable: true, Storage: types.UID("APIService"),
	}}
}

var (
	flunders = remote("Flunder", "flunders")
	fishers  = remote("Fisher", "fishers")
)

// server is an aggregated API server with Flunders and Fishers, and the client for it.
type server struct {
	aggregated.Remotes
	page  func(n int) *metav1.PartialObjectMetadataList
	watch *watch.RaceFreeFakeWatcher
	// fishers answers list requests for Fishers. Nil: there are none.
	fishers func(n int) *metav1.PartialObjectMetadataList

	mu      sync.Mutex
	asked   []metav1.ListOptions
	fished  []metav1.ListOptions
	watched []metav1.ListOptions
	patched map[string]string
	refuses error // error for patches
	changed chan struct{}
	kinds   []aggregated.Remote
	silent  bool // Served reports nothing until has is called
}

// newServer returns a server that answers the n-th list request with page(n).
func newServer(page func(n int) *metav1.PartialObjectMetadataList) *server {
	return &server{
		page:    page,
		watch:   watch.NewRaceFreeFake(),
		changed: make(chan struct{}),
		kinds:   []aggregated.Remote{flunders},
		patched: map[string]string{},
	}
}

func (s *server) Resource(gvr schema.GroupVersionResource) clientmetadata.Getter {
	return resource{server: s, fishers: gvr.Resource == fishers.Resource}
}

type resource struct {
	clientmetadata.ResourceInterface
	*server
	fishers   bool
	namespace string
}

func (s resource) Namespace(name string) clientmetadata.ResourceInterface {
	s.namespace = name
	return s
}

func (s resource) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	asked, page := &s.asked, s.page
	if s.fishers {
		asked, page = &s.fished, s.server.fishers
	}
	s.mu.Lock()
	n := len(*asked)
	*asked = append(*asked, o)
	s.mu.Unlock()
	if page == nil {
		return pageOf(""), nil
	}
	return page(n), nil
}

func (s resource) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions,
	_ ...string) (*metav1.PartialObjectMetadata, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses != nil {
		return nil, s.refuses
	}
	s.patched[s.namespace+"/"+name] = string(data)
	return nil, nil
}

func (s resource) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if s.fishers {
		return watch.NewRaceFreeFake(), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = append(s.watched, o)
	return s.watch, nil
}

func (s *server) Served() ([]aggregated.Remote, bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds, !s.silent, s.changed
}

func (s *server) has(kinds ...aggregated.Remote) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds, s.silent = kinds, false
	close(s.changed)
	s.changed = make(chan struct{})
}

func (l *load) taken() share {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// someFlunder returns a Flunder, with a blocking owner unless owner is empty.
func someFlunder(name string, owner types.UID) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
	}
	if owner != "" {
		m.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: string(owner), UID: owner, BlockOwnerDeletion: new(true)},
		}
	}
	return m
}

func pageOf(more string, items ...*metav1.PartialObjectMetadata) *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: more}}
	for _, m := range items {
		l.Items = append(l.Items, *m)
	}
	return l
}

// following is the watcher of a server, and the requests that it has enqueued.
type following struct {
	*others
	g *graph

	mu       sync.Mutex
	enqueued []engine.Request
	now      time.Time
}

func (f *following) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func follow(t *testing.T, s *server, most limits) *following {
	f := &following{g: newGraph()}
	now := func() time.Time {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.now
	}
	f.others = makeOthers(s, s, slog.New(slog.DiscardHandler), now, func(req engine.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.enqueued = append(f.enqueued, req)
	}, f.g)
	f.most = most
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.follow(ctx)
	}()
	t.Cleanup(func() { stop(); <-ended })
	return f
}

func (f *following) has(req engine.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.enqueued, req)
}

func eventually(t *testing.T, holds func() bool, what string) {
	t.Helper()
	require.Eventually(t, holds, 2*time.Minute, time.Millisecond, what)
}

func (f *following) isOver() bool {
	f.others.mu.Lock()
	defer f.others.mu.Unlock()
	return f.over[flunders] && f.kinds[flunders.GroupKind()] == nil && f.ending[flunders.GroupKind()] == nil
}

// Lists are read page by page, with continue tokens.
func TestListsElsewhereAreReadInPages(t *testing.T) {
	s := newServer(func(n int) *metav1.PartialObjectMetadataList {
		if n == 0 {
			return pageOf("second", someFlunder("one", "cm"))
		}
		return pageOf("", someFlunder("two", "cm"))
	})
	f := follow(t, s, limits{10, 1 << 20})
	eventually(t, func() bool { return len(f.g.of("cm")) == 2 }, "both are followed")
	eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.watched) > 0 }, "changes are watched")
	s.mu.Lock()
	defer s.mu.Unlock()
	require.EqualValues(t, pageSize, s.asked[0].Limit)
	require.Equal(t, "second", s.asked[1].Continue)
	for _, o := range s.watched {
		require.Nil(t, o.SendInitialEvents, "streamed lists are not counted")
	}
}

// An endless list is read up to the limit, and the server is not asked again.
func TestListsWithoutEndAreNotFollowed(t *testing.T) {
	for name, page := range map[string]func(n int) *metav1.PartialObjectMetadataList{
		"many": func(n int) *metav1.PartialObjectMetadataList {
			return pageOf("more", someFlunder(fmt.Sprint(n), ""), someFlunder(fmt.Sprint(n, "b"), ""))
		},
		"large": func(n int) *metav1.PartialObjectMetadataList {
			m := someFlunder(fmt.Sprint(n), "")
			m.Finalizers = []string{strings.Repeat("x", 100_000)}
			return pageOf("more", m)
		},
		"empty": func(int) *metav1.PartialObjectMetadataList { return pageOf("more") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(page)
			f := follow(t, s, limits{50, 1 << 20})
			eventually(t, f.isOver, "it gives up")
			s.mu.Lock()
			asked := len(s.asked)
			s.mu.Unlock()
			require.LessOrEqual(t, asked, maxPages)
			if name != "empty" {
				require.LessOrEqual(t, asked, 26)
			}
			s.has(flunders, fishers) // it is still served
			eventually(t, func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.fished) > 0
			}, "the follower has seen that")
			require.Nil(t, f.of(flunders.GroupKind()))
			s.mu.Lock()
			require.Len(t, s.asked, asked, "it stays so")
			s.mu.Unlock()
			another := flunders
			another.Storage = types.UID("another server")
			s.has(another)
			eventually(t, func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.asked) > asked
			}, "an APIService that was created anew is tried")
		})
	}
}

// When a kind has too many objects, all its objects are forgotten: no owner waits for them.
func TestTooManyObjectsElsewhereAreForgotten(t *testing.T) {
	for name, most := range map[string]limits{"objects": {10, 1 << 20}, "bytes": {1000, 10_000}} {
		t.Run(name, func(t *testing.T) {
			s := newServer(func(int) *metav1.PartialObjectMetadataList { return pageOf("", someFlunder("first", "cm")) })
			f := follow(t, s, most)
			eventually(t, func() bool { return len(f.g.of("cm")) == 1 }, "it is followed")
			owner := ownerOf(object{flunders.GroupVersionKind, "a", "first"}, someFlunder("first", "cm").
				OwnerReferences[0]).request()
			require.False(t, f.has(owner))
			server := f.of(flunders.GroupKind()).load
			for i := range 50 { // the fake's buffer holds 100
				s.watch.Add(someFlunder(fmt.Sprint(i), ""))
			}
			eventually(t, f.isOver, "it gives up")
			require.Empty(t, f.g.of("cm"))
			require.Empty(t, f.all())
			require.True(t, f.has(owner), "it may have waited")
			require.Zero(t, server.taken())
		})
	}
}

// Deleted objects no longer count against the limit.
func TestDeletedObjectsElsewhereDoNotCount(t *testing.T) {
	s := newServer(func(int) *metav1.PartialObjectMetadataList { return pageOf("") })
	f := follow(t, s, limits{3, 1 << 20})
	for i := range 20 {
		m := someFlunder(fmt.Sprint(i), "")
		s.watch.Add(m)
		s.watch.Modify(m)
		s.watch.Delete(m)
	}
	s.watch.Add(someFlunder("last", "cm"))
	eventually(t, func() bool { return len(f.g.of("cm")) == 1 }, "the last one is followed")
	require.False(t, f.isOver())
	eventually(t, func() bool {
		return f.of(flunders.GroupKind()).load.taken() == share{held: weight(someFlunder("last", "cm"))}
	}, "only it counts")
}

// Deleted objects and objects without owners no longer count against maxWaiting.
func TestTheGoneDoNotWait(t *testing.T) {
	s := newServer(func(int) *metav1.PartialObjectMetadataList { return pageOf("") })
	f := makeOthers(s, s, slog.New(slog.DiscardHandler), time.Now, func(engine.Request) {}, newGraph())
	pod := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	for i := range maxWaiting {
		o := someFlunder(fmt.Sprint(i), "nobody")
		f.await(flunders.GroupKind(), object{pod, o.Namespace, o.Name})
		if i%2 == 0 {
			f.notice(pod, o, nil)
		} else {
			f.notice(pod, o, someFlunder(o.Name, ""))
		}
	}
	require.Empty(t, f.waiting)
	last := object{pod, "a", "last"}
	f.await(flunders.GroupKind(), last)
	f.notice(pod, someFlunder("last", "nobody"), someFlunder("last", "another"))
	require.Contains(t, f.waiting, last)
}
