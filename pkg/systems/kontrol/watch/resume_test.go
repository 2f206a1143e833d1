package watch

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// TestAWatchGoesOnWhereItEnded checks that a watch resumes without a list on the same cluster. It lists first on
// another cluster, on a restored one, and if the identity is unknown.
func TestAWatchGoesOnWhereItEnded(t *testing.T) {
	for _, lasts := range []time.Duration{0, time.Minute} { // a watch that ends at once is an error
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			s.put("m", "1", true)
			h, until := hub(t, s)
			next := func(ends *apiwatch.FakeWatcher) *apiwatch.FakeWatcher {
				time.Sleep(lasts)
				ends.Stop()
				return <-s.began
			}
			is := func(lists int, from ...string) {
				t.Helper()
				s.mu.Lock()
				defer s.mu.Unlock()
				require.Equal(t, from, s.from)
				require.Equal(t, lists, s.lists)
			}
			become := func(id types.UID) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.id = id
			}
			h.Want(pair, at)
			until(version("1"))
			events := <-s.began
			events.Modify(s.put("m", "4", true))
			until(version("4"))
			events = next(events)
			is(1, "1", "4")
			require.True(t, version("4")(h.Look(pair)), "what was known stays known")
			events.Action(apiwatch.Bookmark, s.put("", "9", true))
			events.Modify(s.put("m", "10", true))
			until(version("10"))
			events = next(events)
			is(1, "1", "4", "10")

			become("another")
			events = next(events)
			is(2, "1", "4", "10", "10")

			events.Modify(s.put("m", "20", true))
			until(version("20"))
			s.put("m", "3", true) // after a restore the server reports no event and has an older version
			events = next(events)
			is(3, "1", "4", "10", "10", "3")
			until(version("3"))

			become("")
			events = next(events)
			is(4, "1", "4", "10", "10", "3", "3")
			next(events)
			is(5, "1", "4", "10", "10", "3", "3", "3")
		})
	}
}

// TestAWatchGoesOnUntilItsPositionIsOld checks that a watch resumes without a list however long ago the last list was,
// as long as the cluster sends events or bookmarks. After a longer silence it lists: the cluster may have been restored
// and have passed the same version with another history.
func TestAWatchGoesOnUntilItsPositionIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("m", "7", true)
		h, until := hub(t, s)
		h.Want(pair, at)
		until(version("7"))
		events := <-s.began
		goesOn := func(after time.Duration, lists int, from string) {
			t.Helper()
			time.Sleep(after)
			events.Stop()
			events = <-s.began
			s.mu.Lock()
			defer s.mu.Unlock()
			require.Equal(t, lists, s.lists)
			require.Equal(t, from, s.from[len(s.from)-1])
		}
		for range 5 {
			time.Sleep(doubt / 2)
			events.Action(apiwatch.Bookmark, s.put("", "9", true))
		}
		goesOn(doubt/2, 1, "9")
		time.Sleep(doubt / 2)
		events.Modify(s.put("m", "12", true))
		until(version("12"))
		goesOn(doubt-time.Second, 1, "12")

		s.put("m", "15", true) // no event: from another history
		goesOn(2*time.Second, 2, "15")
		until(version("15"))
		goesOn(doubt-time.Second, 2, "15")
		goesOn(2*time.Second, 3, "15")
	})
}

// TestVersionsAreComparedAsNumbers checks that only numeric versions are compared.
func TestVersionsAreComparedAsNumbers(t *testing.T) {
	require.True(t, older("9", "10"))
	require.False(t, older("10", "10"))
	require.False(t, older("x", "10"), "what is no number is not compared")
	require.False(t, older("", ""))
}

// TestLargeObjectsAreNotHeldDecoded: a cluster may send as many large objects as small ones.
func TestLargeObjectsAreNotHeldDecoded(t *testing.T) {
	w := newWatcher(nil, kind{})
	defer w.cancel()
	for name, value := range map[string]any{
		"text":  strings.Repeat("x", maxDecodedSize),
		"list":  make([]any, maxDecodedSize/8),
		"small": strings.Repeat("x", maxDecodedSize/2),
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": value}}
		o.SetName(name)
		o.SetResourceVersion("1")
		o.SetLabels(map[string]string{kontrol.LabelID: "1"})
		at := client.ObjectKeyFromObject(o)
		w.want(at, Pair{name, "c"})
		require.True(t, w.put(at, o))
		require.Equal(t, name == "small", w.items[at].decoded != nil, name)
		require.Equal(t, o, w.look(at).Object, name)
	}
	require.Equal(t, 1, w.decoded)
}
