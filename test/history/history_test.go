package history

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// a is red at 2, blue at 4, gone at 6; b is red at 3 and 5.
var (
	a2, a4 = State{"a-1", "red"}, State{"a-2", "blue"}
	b3, b5 = State{"b-1", "red"}, State{"b-2", "red"}
)

func history() *History {
	return &History{Writes: map[string][]Op{
		"a": {{a2, true, 2}, {a4, true, 4}, {State{}, true, 0}},
		"b": {{b3, true, 3}, {b5, false, 0}},
	}, Streams: []Stream{whole()}}
}

func whole() Stream {
	return Stream{Client: "witness", From: 1, Events: []Event{
		{Type: Added, Key: "a", Revision: 2, State: a2},
		{Type: Added, Key: "b", Revision: 3, State: b3},
		{Type: Modified, Key: "a", Revision: 4, State: a4},
		{Type: Modified, Key: "b", Revision: 5, State: b5},
		{Type: Deleted, Key: "a", Revision: 6, State: a4},
		{Type: Bookmark, Revision: 9},
	}}
}

var (
	addedA  = Event{Type: Added, Key: "a", Revision: 2, State: a2}
	addedB  = Event{Type: Added, Key: "b", Revision: 3, State: b3}
	leftA   = Event{Type: Deleted, Key: "a", Revision: 4, State: a2}
	changeA = Event{Type: Modified, Key: "a", Revision: 4, State: a4}
	changeB = Event{Type: Modified, Key: "b", Revision: 5, State: b5}
	goneA   = Event{Type: Deleted, Key: "a", Revision: 6, State: a4}
	end     = func(rev int64) Event { return Event{Type: Bookmark, Revision: rev, End: true} }
	upTo    = func(rev int64) Event { return Event{Type: Bookmark, Revision: rev} }
)

func TestStreams(t *testing.T) {
	for name, c := range map[string]struct {
		s    Stream
		want string // the error; "" for none
	}{
		"after":       {Stream{From: 2, Events: []Event{addedB, changeA}}, ""},
		"nothing yet": {Stream{From: 2}, ""},
		"a color":     {Stream{From: 1, Color: "red", Events: []Event{addedA, addedB, leftA, changeB}}, ""},
		"a color that comes": {
			Stream{From: 3, Color: "blue", Events: []Event{{Type: Added, Key: "a", Revision: 4, State: a4}, goneA}}, "",
		},
		"missed":                   {Stream{From: 2, Events: []Event{changeA}}, "but the next is"},
		"missed before a bookmark": {Stream{From: 2, Events: []Event{addedB, upTo(4)}}, "was not sent"},
		"twice": {
			Stream{From: 1, Events: []Event{addedA, addedA}}, "but events up to 2 were sent already",
		},
		"from before":                {Stream{From: 2, Events: []Event{addedA}}, "but events up to 2 were sent already"},
		"after its bookmark":         {Stream{From: 2, Events: []Event{upTo(2), upTo(1)}}, "a bookmark of 1 after 2"},
		"the wrong type":             {Stream{From: 3, Color: "blue", Events: []Event{changeA}}, "but the next is"},
		"a color that did not leave": {Stream{From: 3, Color: "red", Events: []Event{changeB}}, "but the next is"},
		"the wrong last state": {
			Stream{From: 5, Events: []Event{{Type: Deleted, Key: "a", Revision: 6, State: a2}}}, "but the next is",
		},
		"unknown": {
			Stream{From: 6, Events: []Event{{Type: Modified, Key: "b", Revision: 7, State: State{ID: "x"}}}},
			"no writer made",
		},
		"streamed": {
			Stream{Start: Streamed, Events: []Event{{Type: Added, Key: "a", Revision: 4, State: a4}, addedB, end(4), changeB}},
			"",
		},
		"streamed, cut": {
			Stream{Start: Streamed, Events: []Event{{Type: Added, Key: "a", Revision: 4, State: a4}}}, "",
		},
		"streamed, not all": {Stream{Start: Streamed, Events: []Event{addedB, end(4)}}, "is missing"},
		"streamed, too old": {
			Stream{
				Start:   Streamed,
				AtLeast: 5,
				Events:  []Event{{Type: Added, Key: "a", Revision: 4, State: a4}, addedB, end(4)},
			},
			"wanted at least 5",
		},
		"streamed, missed after": {
			Stream{Start: Streamed, Events: []Event{{Type: Added, Key: "a", Revision: 4, State: a4}, addedB, end(4), goneA}},
			"but the next is",
		},
		"anywhere": {
			Stream{Start: Anywhere, Events: []Event{{Type: Added, Key: "a", Revision: 4, State: a4}, addedB, changeB, goneA}},
			"",
		},
		"anywhere, after the end": {
			Stream{Start: Anywhere, Events: []Event{{Type: Added, Key: "b", Revision: 5, State: b5}, upTo(8)}}, "",
		},
		"anywhere, too old": {
			Stream{
				Start:   Anywhere,
				AtLeast: 5,
				Events:  []Event{{Type: Added, Key: "a", Revision: 4, State: a4}, addedB, changeB},
			},
			"matches no revision",
		},
		"anywhere, missed": {
			Stream{Start: Anywhere, Events: []Event{addedB, {Type: Added, Key: "a", Revision: 4, State: a4}, goneA}},
			"matches no revision",
		},
		"anywhere, from an empty state": {Stream{Start: Anywhere, Events: []Event{addedA, addedB, changeA}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := history()
			c.s.Client = "client"
			h.Streams = append(h.Streams, c.s)
			if err := errors.Join(h.Check()...); c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

func TestLists(t *testing.T) {
	for name, c := range map[string]struct {
		l    List
		want string
	}{
		"now":       {List{Revision: 6, Items: map[string]Item{"b": {5, b5}}}, ""},
		"later":     {List{Revision: 8, AtLeast: 6, Items: map[string]Item{"b": {5, b5}}}, ""},
		"exact":     {List{Revision: 4, Exact: 4, Items: map[string]Item{"a": {4, a4}, "b": {3, b3}}}, ""},
		"a color":   {List{Revision: 4, Color: "red", Items: map[string]Item{"b": {3, b3}}}, ""},
		"not exact": {List{Revision: 6, Exact: 4, Items: map[string]Item{"b": {5, b5}}}, "exactly 4"},
		"too old": {
			List{Revision: 4, AtLeast: 5, Items: map[string]Item{"a": {4, a4}, "b": {3, b3}}}, "wanted at least 5",
		},
		"of no revision":  {List{Revision: 6, Items: map[string]Item{"b": {3, b3}}}, "should be"},
		"what was gone":   {List{Revision: 6, Items: map[string]Item{"a": {4, a4}, "b": {5, b5}}}, "is there"},
		"without one":     {List{Revision: 6}, "is missing"},
		"another's state": {List{Revision: 6, Items: map[string]Item{"b": {5, b3}}}, "another saw"},
	} {
		t.Run(name, func(t *testing.T) {
			h := history()
			c.l.Client = "client"
			h.Lists = append(h.Lists, c.l)
			if err := errors.Join(h.Check()...); c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

func TestWrites(t *testing.T) {
	h := history()
	h.Writes["c"] = []Op{{State{ID: "c-1"}, false, 0}} // the write did not happen
	require.Empty(t, h.Check())
	h.Writes["c"][0].Acknowledged = true
	require.ErrorContains(t, errors.Join(h.Check()...), "was acknowledged, but the next change is none")
	h = history()
	h.Writes["b"] = h.Writes["b"][:1]
	require.ErrorContains(t, errors.Join(h.Check()...), "a change that no writer made")
	h = history()
	h.Truth = map[int64]Change{5: {Key: "a", State: a2}}
	require.ErrorContains(t, errors.Join(h.Check()...), "another saw")
}
