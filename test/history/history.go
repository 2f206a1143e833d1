package history

import (
	"fmt"
	"slices"
	"sort"
)

// State is what an object is after a change. Each write has an ID of its own; without one, the object is gone.
type State struct {
	ID string
	// Color is what clients select by.
	Color string
}

func (s State) gone() bool { return s.ID == "" }

// selected reports whether a client that selects a color, or everything, sees the object.
func (s State) selected(color string) bool {
	return !s.gone() && (color == "" || s.Color == color)
}

// Op is an operation of a key's only writer, in its order. One that was not acknowledged may have happened or not; none
// follows it.
type Op struct {
	State        State
	Acknowledged bool
	// Revision is that of the change, if the answer told it.
	Revision int64
}

// Item is an object in a list, at the revision of its last change.
type Item struct {
	Revision int64
	State    State
}

// List is the answer to a list.
type List struct {
	Client   string
	Revision int64
	// AtLeast is the revision that the answer must have reached: one that was acknowledged before, or asked for.
	AtLeast int64
	// Exact is the revision that was asked for; 0 for none.
	Exact int64
	Color string
	Items map[string]Item
}

// The types of events, as on the wire.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Bookmark = "BOOKMARK"
)

// Event is what a client was sent: a change of a key, whose State is the last one for Deleted, or a bookmark.
type Event struct {
	Type     string
	Key      string
	Revision int64
	State    State
	// End marks the bookmark after the initial events.
	End bool
}

// Start is how a watch begins.
type Start int

const (
	// After a revision.
	After Start = iota
	// Streamed: with the state, and a bookmark at its end (sendInitialEvents).
	Streamed
	// Anywhere: with the state at a revision that the client is not told.
	Anywhere
)

// Stream is a watch, from its opening to where the client stopped reading.
type Stream struct {
	Client string
	Start  Start
	// From is the revision that After is after. AtLeast is the one that a state must have reached.
	From, AtLeast int64
	Color         string
	Events        []Event
}

// History is what everybody did and saw.
type History struct {
	// Writes are the operations by key.
	Writes  map[string][]Op
	Lists   []List
	Streams []Stream
	// Truth are changes that are known otherwise, by revision, such as from etcd itself.
	Truth map[int64]Change
}

// Change is one change of one key.
type Change struct {
	Key   string
	State State
}

// mostErrors is how many errors Check returns.
const mostErrors = 20

// Check returns what cannot be. It is to be called when all writes have been seen by a client that sees everything.
func (h *History) Check() []error {
	c := &checker{changes: map[int64]Change{}}
	c.collect(h)
	c.sort()
	for _, key := range sortedKeys(h.Writes) {
		c.writes(key, h.Writes[key])
	}
	for i := range h.Lists {
		c.list(&h.Lists[i])
	}
	for i := range h.Streams {
		c.stream(&h.Streams[i])
	}
	return c.errs
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// change is a Change in its order.
type change struct {
	rev    int64
	key    string
	before State
	after  State
}

type checker struct {
	changes map[int64]Change
	ordered []change
	byKey   map[string][]change
	errs    []error
}

func (c *checker) fail(format string, args ...any) {
	if len(c.errs) < mostErrors {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

// note records a change that somebody knows of. All must agree.
func (c *checker) note(who string, rev int64, key string, s State) {
	now := Change{Key: key, State: s}
	if old, known := c.changes[rev]; known && old != now {
		c.fail("%s: revision %d is %+v, but another saw %+v", who, rev, now, old)
		return
	}
	c.changes[rev] = now
}

// collect takes the changes from everything that says which there were.
func (c *checker) collect(h *History) {
	for rev, ch := range h.Truth {
		c.note("truth", rev, ch.Key, ch.State)
	}
	for _, key := range sortedKeys(h.Writes) {
		for _, op := range h.Writes[key] {
			if op.Revision > 0 {
				c.note("writer", op.Revision, key, op.State)
			}
		}
	}
	for _, l := range h.Lists {
		for _, key := range sortedKeys(l.Items) {
			c.note(l.Client, l.Items[key].Revision, key, l.Items[key].State)
		}
	}
	for _, s := range h.Streams {
		for _, e := range s.Events {
			switch {
			case e.Type == Added || e.Type == Modified:
				c.note(s.Client, e.Revision, e.Key, e.State)
			case e.Type == Deleted && s.Color == "": // otherwise it may only have changed its color
				c.note(s.Client, e.Revision, e.Key, State{})
			}
		}
	}
}

func (c *checker) sort() {
	c.byKey = map[string][]change{}
	for rev, ch := range c.changes {
		c.ordered = append(c.ordered, change{rev: rev, key: ch.Key, after: ch.State})
	}
	slices.SortFunc(c.ordered, func(a, b change) int { return int(a.rev - b.rev) })
	last := map[string]State{}
	for i := range c.ordered {
		ch := &c.ordered[i]
		ch.before = last[ch.key]
		last[ch.key] = ch.after
		c.byKey[ch.key] = append(c.byKey[ch.key], *ch)
	}
}

// writes checks that what happened to a key is what its writer did.
func (c *checker) writes(key string, ops []Op) {
	changes := c.byKey[key]
	for i, op := range ops {
		switch {
		case len(changes) > 0 && changes[0].after == op.State:
			changes = changes[1:]
		case op.Acknowledged:
			c.fail("%s: operation %d, %+v, was acknowledged, but the next change is %+v", key, i, op, first(changes))
			return
		}
	}
	if len(changes) > 0 {
		c.fail("%s: a change that nobody made: %+v", key, changes[0])
	}
}

func first(changes []change) any {
	if len(changes) == 0 {
		return "none"
	}
	return changes[0]
}

// at returns the last change of a key up to a revision.
func (c *checker) at(key string, rev int64) (change, bool) {
	all := c.byKey[key]
	i := sort.Search(len(all), func(i int) bool { return all[i].rev > rev })
	if i == 0 {
		return change{}, false
	}
	return all[i-1], true
}

// state says how items differ from the state at a revision; "" if they do not.
func (c *checker) state(items map[string]Item, rev int64, color string) string {
	for _, key := range sortedKeys(c.byKey) {
		ch, _ := c.at(key, rev)
		item, has := items[key]
		switch want := ch.after.selected(color); {
		case want && !has:
			return fmt.Sprintf("%s, %+v since %d, is missing", key, ch.after, ch.rev)
		case !want && has:
			return fmt.Sprintf("%s is there as %+v, but is %+v since %d", key, item, ch.after, ch.rev)
		case has && item != Item{Revision: ch.rev, State: ch.after}:
			return fmt.Sprintf("%s is %+v, but should be %+v of %d", key, item, ch.after, ch.rev)
		}
	}
	return "" // collect knows each item's key
}

func (c *checker) list(l *List) {
	if l.Revision < l.AtLeast || l.Exact > 0 && l.Revision != l.Exact {
		c.fail("%s: a list of revision %d, wanted at least %d, exactly %d", l.Client, l.Revision, l.AtLeast, l.Exact)
	}
	if wrong := c.state(l.Items, l.Revision, l.Color); wrong != "" {
		c.fail("%s: the list of revision %d (color %q): %s", l.Client, l.Revision, l.Color, wrong)
	}
}
