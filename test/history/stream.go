package history

import (
	"fmt"
	"slices"
	"sort"
)

func (c *checker) stream(s *Stream) {
	switch s.Start {
	case After:
		if wrong := c.events(s.Events, s.From, s.Color); wrong != "" {
			c.fail("%s: the watch after %d (color %q): %s", s.Client, s.From, s.Color, wrong)
		}
	case Streamed:
		c.streamed(s)
	case Anywhere:
		c.anywhere(s)
	}
}

// events describes how events differ from all changes after a revision, up to the revision of the last event; "" if
// they are equal.
func (c *checker) events(events []Event, from int64, color string) string {
	next := sort.Search(len(c.ordered), func(i int) bool { return c.ordered[i].rev > from })
	told := from
	// due returns the next event that the server must send for a change up to a revision.
	due := func(upTo int64) (Event, bool) {
		for ; next < len(c.ordered) && c.ordered[next].rev <= upTo; next++ {
			if e, has := c.ordered[next].seenBy(color); has {
				next++
				return e, true
			}
		}
		return Event{}, false
	}
	for i, e := range events {
		if e.Type == Bookmark {
			if e.Revision < told {
				return fmt.Sprintf("event %d: a bookmark of %d after %d", i, e.Revision, told)
			}
			if missed, has := due(e.Revision); has {
				return fmt.Sprintf("event %d: a bookmark of %d, but %+v was not sent", i, e.Revision, missed)
			}
			told = e.Revision
			continue
		}
		if e.Revision <= told {
			return fmt.Sprintf("event %d: %+v, but events up to %d were sent already", i, e, told)
		}
		want, has := due(e.Revision)
		if !has {
			return fmt.Sprintf("event %d: %+v does not match any change", i, e)
		}
		if want != e {
			return fmt.Sprintf("event %d: %+v, but the next is %+v", i, e, want)
		}
		told = e.Revision
	}
	return ""
}

// seenBy returns the event that a change causes for a client with the selector color.
func (ch change) seenBy(color string) (Event, bool) {
	e := Event{Key: ch.key, Revision: ch.rev, State: ch.after}
	before, after := ch.before.selected(color), ch.after.selected(color)
	switch {
	case before && after:
		e.Type = Modified
	case after:
		e.Type = Added
	case before:
		e.Type, e.State = Deleted, ch.before
	default:
		return Event{}, false
	}
	return e, true
}

// streamed checks that the initial events add up to the state at the bookmark, and then the events after it.
func (c *checker) streamed(s *Stream) {
	end := slices.IndexFunc(s.Events, func(e Event) bool { return e.End })
	if end < 0 {
		return // the watch ended early, and the client discards its events
	}
	items := map[string]Item{}
	for _, e := range s.Events[:end] {
		switch e.Type {
		case Added, Modified:
			items[e.Key] = Item{Revision: e.Revision, State: e.State}
		case Deleted:
			delete(items, e.Key)
		}
	}
	rev := s.Events[end].Revision
	if rev < s.AtLeast {
		c.fail("%s: the streamed list has revision %d, wanted at least %d", s.Client, rev, s.AtLeast)
	}
	if wrong := c.state(items, rev, s.Color); wrong != "" {
		c.fail("%s: the streamed list of revision %d (color %q): %s", s.Client, rev, s.Color, wrong)
	}
	if wrong := c.events(s.Events[end+1:], rev, s.Color); wrong != "" {
		c.fail("%s: the watch after the streamed list of revision %d (color %q): %s", s.Client, rev, s.Color, wrong)
	}
}

// anywhere looks for a revision at which the first events are the state and the other events are the changes after it.
func (c *checker) anywhere(s *Stream) {
	items := map[string]Item{}
	var newest int64
	why := "no revision fits"
	for n := 0; ; n++ {
		for _, rev := range c.between(max(newest, s.AtLeast), s.Events[n:]) {
			wrong := c.state(items, rev, s.Color)
			if wrong == "" {
				if wrong = c.events(s.Events[n:], rev, s.Color); wrong == "" {
					return
				}
			}
			why = wrong
		}
		if n == len(s.Events) || s.Events[n].Type != Added {
			break
		}
		e := s.Events[n]
		items[e.Key] = Item{Revision: e.Revision, State: e.State}
		newest = max(newest, e.Revision)
	}
	if complete := len(s.Events) > 0 && s.Events[len(s.Events)-1].Type != Added; complete {
		c.fail("%s: a watch that begins anywhere, at least at %d (color %q), matches no revision: %s", s.Client,
			s.AtLeast, s.Color, why)
	}
	// Otherwise the watch may have ended during the initial state.
}

// between returns the revisions, starting with from, at which the state can be before the next event.
func (c *checker) between(from int64, next []Event) []int64 {
	revs := []int64{from}
	for i := sort.Search(len(c.ordered), func(i int) bool { return c.ordered[i].rev > from }); i < len(c.ordered); i++ {
		if len(next) > 0 && c.ordered[i].rev >= next[0].Revision {
			break
		}
		revs = append(revs, c.ordered[i].rev)
	}
	return revs
}
