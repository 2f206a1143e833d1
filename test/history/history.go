package history

import (
	"fmt"
	"slices"
	"sort"
)

// State is an object after a change. Each write has its own ID; an empty ID means that the object does not exist.
type State struct {
	ID string
	// Color is the label by which clients select.
	Color string
}

func (s State) gone() bool { return s.ID == "" }

// selected reports whether a client with the selector color sees the object. An empty color selects everything.
func (s State) selected(color string) bool {
	return !s.gone() && (color == "" || s.Color == color)
}

// Op is an operation of a key's only writer, in order. An operation without acknowledgement may or may not have
// happened; no other operation follows it.
type Op struct {
	State        State
	Acknowledged bool
	// Revision is the revision of the change, or 0 if the answer did not contain it.
	Revision int64
}

// Item is an object in a list, at the revision of its last change.
type Item struct {
	Revision int64
	State    State
}

// List is the response to a list request.
type List struct {
	Client   string
	Revision int64
	// AtLeast is the lowest revision the answer may have: a revision acknowledged before the request, or the
	// requested one.
	AtLeast int64
	// Exact is the requested revision; 0 means any.
	Exact int64
	Color string
	Items map[string]Item
}

// The types of watch events.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Bookmark = "BOOKMARK"
)

// Event is a watch event: a change of a key, or a bookmark. For Deleted, State is the last state.
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
	// After begins after a revision.
	After Start = iota
	// Streamed begins with the state, followed by a bookmark (sendInitialEvents).
	Streamed
	// Anywhere begins with the state at a revision that the client does not learn.
	Anywhere
)

// Stream is a watch, from its opening to where the client stopped reading.
type Stream struct {
	Client string
	Start  Start
	// From is the revision for Start After. AtLeast is the lowest revision that an initial state may have.
	From, AtLeast int64
	Color         string
	Events        []Event
}

// History is all operations and observations.
type History struct {
	// Writes are the operations by key.
	Writes  map[string][]Op
	Lists   []List
	Streams []Stream
	// Truth holds changes known from another source, such as etcd itself, by revision.
	Truth map[int64]Change
}

// Change is one change of one key.
type Change struct {
	Key   string
	State State
}

const mostErrors = 20

// Check returns the contradictions, at most mostErrors. Call it only after a client that selects everything has
// seen all writes.
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

// change is a Change with its place in the history.
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

// note records a change that an observer reports. All observers must agree.
func (c *checker) note(who string, rev int64, key string, s State) {
	now := Change{Key: key, State: s}
	if old, known := c.changes[rev]; known && old != now {
		c.fail("%s: revision %d is %+v, but another saw %+v", who, rev, now, old)
		return
	}
	c.changes[rev] = now
}

// collect takes the changes from all operations and observations.
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
			case e.Type == Deleted && s.Color == "": // a deleted event of a watch by color may be a change of color
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

// writes checks that the changes of a key are the operations of its writer.
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
		c.fail("%s: a change that no writer made: %+v", key, changes[0])
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

// state describes how items differ from the state at a revision; "" if they are equal.
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
	return "" // collect has noted the key of each item
}

func (c *checker) list(l *List) {
	if l.Revision < l.AtLeast || l.Exact > 0 && l.Revision != l.Exact {
		c.fail("%s: a list of revision %d, wanted at least %d, exactly %d", l.Client, l.Revision, l.AtLeast, l.Exact)
	}
	if wrong := c.state(l.Items, l.Revision, l.Color); wrong != "" {
		c.fail("%s: the list of revision %d (color %q): %s", l.Client, l.Revision, l.Color, wrong)
	}
}
