package watch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// TestAWatchGoesOnWhereItEnded: without a list, on the same cluster. On another one, on one that went back, and where it is not known whether it is
// the same, a list comes first.
func TestAWatchGoesOnWhereItEnded(t *testing.T) {
	s := newServer()
	s.put("m", "1", true)
	h, until := hub(t, s)
	next := func() *apiwatch.FakeWatcher {
		t.Helper()
		h.Reached("c")
		select {
		case w := <-s.began:
			return w
		case <-time.After(time.Minute):
			t.Fatal("there is no watch")
			return nil
		}
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
	events := next()
	events.Modify(s.put("m", "4", true))
	until(version("4"))
	events.Stop()
	events = next()
	is(1, "1", "4")
	require.True(t, version("4")(h.Look(pair)), "what was known stays known")
	events.Action(apiwatch.Bookmark, s.put("", "9", true))
	events.Modify(s.put("m", "10", true))
	until(version("10"))
	events.Stop()
	events = next()
	is(1, "1", "4", "10")

	become("another")
	events.Stop()
	events = next()
	is(2, "1", "4", "10", "10")

	events.Modify(s.put("m", "20", true))
	until(version("20"))
	s.put("m", "3", true) // from a copy: the server says nothing, and has a version of before
	events.Stop()
	events = next()
	is(3, "1", "4", "10", "10", "3")
	until(version("3"))

	become("")
	events.Stop()
	events = next()
	is(4, "1", "4", "10", "10", "3", "3")
	events.Stop()
	_ = next()
	is(5, "1", "4", "10", "10", "3", "3", "3")
}

// TestEverythingIsListedHourly: a cluster that was restored from a copy, and has newer versions by now, is seen as it is.
func TestEverythingIsListedHourly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("m", "7", true)
		h, until := hub(t, s)
		h.Want(pair, at)
		until(version("7"))
		events := <-s.began
		time.Sleep(listAgain / 2)
		s.put("m", "8", true) // without an event
		events.Stop()
		events = <-s.began
		require.True(t, version("7")(h.Look(pair)))
		time.Sleep(listAgain)
		events.Stop()
		until(version("8"))
	})
}

// TestVersionsAreComparedAsNumbers, if they are numbers.
func TestVersionsAreComparedAsNumbers(t *testing.T) {
	require.True(t, older("9", "10"))
	require.False(t, older("10", "10"))
	require.False(t, older("x", "10"), "what is no number is not compared")
	require.False(t, older("", ""))
}
