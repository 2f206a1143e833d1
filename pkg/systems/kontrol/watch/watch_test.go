package watch

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a cluster with config maps. The test sends its watch events.
type server struct {
	client.WithWatch
	mapper *meta.DefaultRESTMapper

	mu             sync.Mutex
	objects        map[string]*unstructured.Unstructured
	version        string    // the current one
	lists, watches int       // lists of all objects
	from           []string  // the versions from which watches began
	id             types.UID // the cluster's UID; empty if it may not be read
	began          chan *apiwatch.FakeWatcher
	alone          chan *apiwatch.FakeWatcher // watches of one object
}

func newServer() *server {
	s := &server{
		id:      "one",
		version: "1",
		mapper:  meta.NewDefaultRESTMapper(nil),
		objects: map[string]*unstructured.Unstructured{},
		began:   make(chan *apiwatch.FakeWatcher, 10),
		alone:   make(chan *apiwatch.FakeWatcher, 10),
	}
	s.mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	return s
}

func (s *server) RESTMapper() meta.RESTMapper {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mapper
}

func (s *server) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := l.(*unstructured.UnstructuredList)
	o := (&client.ListOptions{}).ApplyOptions(opts)
	list.SetResourceVersion(s.version)
	if o.Limit == 1 {
		return nil // the request only asks for the current version
	}
	s.lists++
	for _, u := range s.objects {
		if o.LabelSelector.Matches(labelsOf(u)) {
			list.Items = append(list.Items, *u)
		}
	}
	return nil
}

func (s *server) Get(_ context.Context, at client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns, ok := o.(*metav1.PartialObjectMetadata); ok {
		if ns.UID = s.id; s.id == "" {
			return apierrors.NewForbidden(schema.GroupResource{}, at.Name, nil)
		}
		return nil
	}
	u := s.objects[at.Name]
	if u == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, at.Name)
	}
	u.DeepCopyInto(o.(*unstructured.Unstructured))
	return nil
}

func (s *server) Watch(_ context.Context, _ client.ObjectList, opts ...client.ListOption) (apiwatch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := apiwatch.NewFakeWithOptions(apiwatch.FakeOptions{ChannelSize: 10})
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if o.FieldSelector != nil {
		s.alone <- w
		return w, nil
	}
	s.watches++
	s.from = append(s.from, o.Raw.ResourceVersion)
	s.began <- w
	return w, nil
}

func (s *server) put(name, version string, labelled bool) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("v1")
	u.SetKind("ConfigMap")
	u.SetNamespace("ns")
	u.SetName(name)
	u.SetResourceVersion(version)
	if labelled {
		u.SetLabels(map[string]string{kontrol.LabelID: "1"})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[name], s.version = u, version
	return u
}

func (s *server) remove(name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := s.objects[name]
	delete(s.objects, name)
	return gone
}

type labelSet map[string]string

func labelsOf(u *unstructured.Unstructured) labelSet       { return u.GetLabels() }
func (l labelSet) Has(k string) bool                       { _, ok := l[k]; return ok }
func (l labelSet) Get(k string) string                     { return l[k] }
func (l labelSet) Lookup(k string) (value string, ok bool) { value, ok = l[k]; return }

// hub returns a hub with the server as cluster c, and a function that waits until a condition on the pair's state
// holds.
func hub(t *testing.T, s client.WithWatch) (*Hub, func(func(Seen) bool)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	begin := func(f func(context.Context)) { wg.Go(func() { f(ctx) }) }
	t.Cleanup(func() { cancel(); wg.Wait() })
	pool := target.NewPool("v1")
	pool.Set("c", target.Config{Local: s}, begin)
	changes := make(chan Pair, 100)
	h := New(pool, begin, func(p Pair) { changes <- p })
	return h, func(ok func(Seen) bool) {
		t.Helper()
		for !ok(h.Look(pair)) {
			select {
			case <-changes:
			case <-time.After(time.Minute):
				t.Fatalf("%+v", h.Look(pair))
			}
		}
	}
}

var (
	pair = Pair{"r", "c"}
	at   = kontrol.Target{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "m"}
)

func version(v string) func(Seen) bool {
	return func(s Seen) bool { return s.Object != nil && s.Object.GetResourceVersion() == v }
}

// TestOneWatchForAll checks that all pairs of a kind share one watch, which ends with the last pair, and that it
// sees changes, deletions and lost labels.
func TestOneWatchForAll(t *testing.T) {
	s := newServer()
	s.put("m", "1", true)
	h, until := hub(t, s)
	require.Equal(t, Seen{}, h.Look(pair), "nothing is known of what is not wanted")
	h.Want(pair, at)
	h.Want(Pair{"other", "c"}, kontrol.Target{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "o"})
	until(version("1"))
	events := <-s.began
	events.Modify(s.put("m", "2", true))
	until(version("2"))
	// Without its label the watch reports the object deleted. It still exists, so it gets its own watch.
	events.Delete(s.put("m", "3", false))
	until(version("3"))
	alone := <-s.alone
	alone.Modify(s.put("m", "4", false))
	until(version("4"))
	// The object gets its label back, and is then deleted.
	alone.Modify(s.put("m", "5", true))
	until(version("5"))
	for range alone.ResultChan() { // until it ends: if the label were lost before that, it would go on
	}
	events.Add(s.put("m", "6", true))
	until(version("6"))
	events.Delete(s.put("m", "7", false))
	until(version("7"))
	alone = <-s.alone
	alone.Delete(s.remove("m"))
	until(func(s Seen) bool { return s.Known && s.Object == nil && s.Recorded == 0 })
	require.Equal(t, 1, h.Watches())
	s.mu.Lock()
	require.Equal(t, []int{1, 1}, []int{s.lists, s.watches})
	s.mu.Unlock()
	h.Drop(pair)
	require.Equal(t, 1, h.Watches())
	h.Drop(Pair{"other", "c"})
	require.Zero(t, h.Watches())
}

// TestALateWatchOfOneObject checks that events of the shared watch are kept and that the object is followed.
func TestALateWatchOfOneObject(t *testing.T) {
	s := newServer()
	s.put("m", "1", true)
	h, until := hub(t, s)
	h.Want(pair, at)
	until(version("1"))
	events := <-s.began
	events.Delete(s.put("m", "2", false))
	until(version("2"))
	alone := <-s.alone
	late := s.put("m", "3", true)
	events.Add(late)
	events.Delete(s.put("m", "4", false))
	until(version("4"))
	alone.Modify(late)
	alone.Modify(s.put("m", "5", false))
	until(version("5"))
}

// TestExpiredWatchesAreListedAgain checks that changes are seen and that missing objects are looked up.
func TestExpiredWatchesAreListedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("m", "1", true)
		h, until := hub(t, s)
		h.Want(pair, at)
		until(version("1"))
		s.put("m", "7", true)
		(<-s.began).Error(&metav1.Status{
			Status: metav1.StatusFailure,
			Code:   http.StatusGone,
			Reason: metav1.StatusReasonExpired,
		})
		until(version("7"))
		s.put("m", "8", false)
		(<-s.began).Error(&metav1.Status{
			Status: metav1.StatusFailure,
			Code:   http.StatusGone,
			Reason: metav1.StatusReasonExpired,
		})
		until(version("8"))
		(<-s.began).Error(&metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusInternalServerError,
			Message: "broken",
		})
		until(func(s Seen) bool { return s.Reason == "WatchFailed" })
		until(func(s Seen) bool { return s.Reason == "" })
	})
}

// endless is a server whose lists never end.
type endless struct{ *server }

func (e endless) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	l.SetContinue("more")
	return e.server.List(ctx, l, opts...)
}

// TestListsWithoutEnd checks that lists end whose pages are empty, or are always the same.
func TestListsWithoutEnd(t *testing.T) {
	for _, labelled := range []bool{false, true} {
		t.Run(fmt.Sprintf("objects=%t", labelled), func(t *testing.T) {
			s := newServer()
			s.put("m", "1", labelled)
			h, until := hub(t, endless{s})
			h.Want(pair, at)
			until(func(s Seen) bool { return strings.Contains(s.Error, "a page without new objects") })
		})
	}
}

// TestAKindThatIsMissingIsWaitedFor checks that a missing kind is reported, and followed once it exists.
func TestAKindThatIsMissingIsWaitedFor(t *testing.T) {
	s := newServer()
	s.mapper = meta.NewDefaultRESTMapper(nil)
	h, until := hub(t, s)
	h.Want(pair, at)
	until(func(s Seen) bool { return s.Reason == kontrol.ReasonNoKind })
	require.Contains(t, h.Look(pair).Error, "no kind ConfigMap in v1")
	s.put("m", "1", true)
	s.mu.Lock()
	s.mapper = newServer().mapper
	s.mu.Unlock()
	h.Reached("c")
	until(version("1"))
}

// TestWhatIsRecordedIsNotHeld checks that only the version of a recorded object is held until it changes or is loaded.
func TestWhatIsRecordedIsNotHeld(t *testing.T) {
	s := newServer()
	s.put("m", "1", true)
	h, until := hub(t, s)
	h.Want(pair, at)
	until(version("1"))
	h.Recorded(pair, "0", 7)
	require.NotNil(t, h.Look(pair).Object, "another version was recorded")
	h.Recorded(pair, "1", 7)
	require.Equal(t, Seen{Known: true, Recorded: 7}, h.Look(pair))
	require.NoError(t, h.Load(t.Context(), pair))
	require.True(t, version("1")(h.Look(pair)))

	// A list with the same version leaves the object recorded; another version does not.
	h.Recorded(pair, "1", 8)
	(<-s.began).Error(&metav1.Status{
		Status: metav1.StatusFailure,
		Code:   http.StatusGone,
		Reason: metav1.StatusReasonExpired,
	})
	events := <-s.began
	require.Equal(t, Seen{Known: true, Recorded: 8}, h.Look(pair))
	events.Modify(s.put("m", "2", true))
	until(version("2"))

	// Two Resources for one object have different records, so the object is held for both.
	other := Pair{"other", "c"}
	h.Want(other, at)
	h.Recorded(pair, "2", 9)
	require.NotNil(t, h.Look(other).Object)
	require.ErrorIs(t, func() error { h.pool.Remove("c"); return h.Load(t.Context(), pair) }(), ErrUnreachable)
}

// TestWhatNobodyWantsIsBounded checks that a bounded amount of objects without a Resource, such as another
// Kontrol's, is held. An object that is wanted later is held already or read.
func TestWhatNobodyWantsIsBounded(t *testing.T) {
	const n, size = 20, maxUnwanted / 10
	s := newServer()
	s.put("m", "1", true)
	for i := range n {
		s.put(fmt.Sprint("o", i), "1", true).Object["data"] = map[string]any{"a": strings.Repeat("x", size)}
	}
	h, until := hub(t, s)
	h.Want(pair, at)
	until(func(s Seen) bool { return s.Known && s.Object != nil })
	w := h.places[pair].watcher
	held := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.unwanted
	}
	require.Positive(t, held())
	require.LessOrEqual(t, held(), maxUnwanted)
	loaded := 0
	for i := range n {
		p := Pair{fmt.Sprint(i), "c"}
		h.Want(p, kontrol.Target{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: fmt.Sprint("o", i)})
		if h.Look(p).Recorded != 0 {
			loaded++
			require.NoError(t, h.Load(t.Context(), p))
		}
		require.True(t, version("1")(h.Look(p)))
	}
	require.Positive(t, loaded)
	require.Less(t, loaded, n)
	require.Zero(t, held())
	for i := range n {
		h.Drop(Pair{fmt.Sprint(i), "c"})
	}
	require.Zero(t, held())
}
