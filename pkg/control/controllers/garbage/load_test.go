package garbage

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// sized returns a page with one object of about that many bytes.
func sized(more string, bytes int) *metav1.PartialObjectMetadataList {
	return pageOf(more, large("one", bytes))
}

func large(name string, bytes int) *metav1.PartialObjectMetadata {
	m := someFlunder(name, "")
	m.Finalizers = []string{string(make([]byte, bytes))}
	return m
}

// Kinds of one server share its memory: a kind that exceeds the rest is dropped, and the others stay. Each server
// has a limit of its own.
func TestKindsOfAServerShareItsMemory(t *testing.T) {
	s := newServer(func(int) *metav1.PartialObjectMetadataList { return sized("", 60_000) })
	s.fishers = func(int) *metav1.PartialObjectMetadataList { return sized("", 60_000) }
	s.kinds = []aggregated.Remote{fishers}
	f := follow(t, s, limits{1000, 100_000})
	eventually(t, func() bool {
		k := f.of(fishers.GroupKind())
		return k != nil && k.load.taken().held > 60_000
	}, "Fishers are followed")
	s.has(fishers, flunders)
	eventually(t, f.isOver, "Flunders are too many")
	require.NotNil(t, f.of(fishers.GroupKind()))
	elsewhere := flunders
	elsewhere.Server, elsewhere.Storage = "another server", types.UID("another APIService")
	s.has(fishers, elsewhere)
	eventually(t, func() bool {
		k := f.of(flunders.GroupKind())
		return k != nil && k.load.taken().held > 60_000
	}, "those of another server are followed")
	require.NotNil(t, f.of(fishers.GroupKind()))
}

// A list counts against its server's limit while it is being read.
func TestListsUnderWayCount(t *testing.T) {
	answer := make(chan struct{})
	s := newServer(func(n int) *metav1.PartialObjectMetadataList {
		if n == 0 {
			return sized("second", 60_000)
		}
		<-answer
		return pageOf("")
	})
	s.fishers = func(int) *metav1.PartialObjectMetadataList { return sized("more", 60_000) }
	f := follow(t, s, limits{1000, 100_000})
	eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.asked) == 2 }, "Flunders are read")
	s.has(flunders, fishers)
	eventually(t, func() bool {
		f.others.mu.Lock()
		defer f.others.mu.Unlock()
		return f.over[fishers]
	}, "Fishers are too many beside them")
	s.mu.Lock()
	require.Len(t, s.fished, 1)
	s.mu.Unlock()
	close(answer)
	eventually(t, func() bool {
		k := f.of(flunders.GroupKind())
		return k != nil && k.load.taken() == share{held: weight(large("one", 60_000))}
	}, "Flunders are followed, and nothing is read")
}

// A list of an already watched kind counts only its excess, so that a relist does not drop the kind.
func TestListsTakeThePlaceOfWhatIsFollowed(t *testing.T) {
	l, kind, neighbour := &load{}, &share{}, &share{}
	require.True(t, l.hold(kind, 60, 100))
	require.True(t, l.read(kind, 90, 100))
	require.Equal(t, share{held: 60, reading: 30}, l.taken())
	require.True(t, l.hold(neighbour, 20, 100), "it does not pay for what another one reads")
	require.False(t, l.read(kind, 90, 100))
	l.read(kind, 0, 100)
	l.release(kind)
	require.Equal(t, share{held: 20}, l.taken())
}

// Dropping a kind does not drop others, even before its informer has ended.
func TestOnlyTheKindThatGrowsIsLetGo(t *testing.T) {
	s := newServer(nil)
	o := makeOthers(s, s, slog.New(slog.DiscardHandler), time.Now, func(engine.Request) {}, newGraph())
	o.most = limits{1000, 100_000}
	server := &load{}
	handled := func(k aggregated.Remote) toolscache.ResourceEventHandler {
		ctx, stop := context.WithCancel(t.Context())
		f := &other{Remote: k, load: server, stop: stop}
		o.kinds[k.GroupKind()] = f
		return o.handler(ctx, f)
	}
	grows, stays := handled(flunders), handled(fishers)
	neighbour := large("one", 30_000)
	stays.OnAdd(neighbour, false)
	grows.OnAdd(large("one", 60_000), false)
	grows.OnAdd(large("two", 60_000), false)
	require.Nil(t, o.of(flunders.GroupKind()))
	stays.OnUpdate(neighbour, neighbour)
	stays.OnAdd(someFlunder("small", ""), false)
	stays.OnDelete(neighbour)
	require.NotNil(t, o.of(fishers.GroupKind()))
	require.Equal(t, share{held: weight(someFlunder("small", ""))}, server.taken())
}

func TestFewListsAtATime(t *testing.T) {
	var mu sync.Mutex
	now, most, answer := 0, 0, make(chan struct{})
	page := func(int) *metav1.PartialObjectMetadataList {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-answer
		mu.Lock()
		now--
		mu.Unlock()
		return pageOf("")
	}
	s := newServer(page)
	s.fishers = page
	s.kinds = []aggregated.Remote{flunders, fishers}
	for _, name := range []string{"Net", "Rod", "Hook", "Boat"} {
		s.kinds = append(s.kinds, remote(name, "fishers"))
	}
	f := follow(t, s, limits{10, 1 << 20})
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return now == maxLists }, "some are read")
	close(answer)
	eventually(t, func() bool {
		f.others.mu.Lock()
		defer f.others.mu.Unlock()
		return f.first.over
	}, "all have been read")
	require.Equal(t, maxLists, most)
}
