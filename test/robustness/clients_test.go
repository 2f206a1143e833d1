package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-dev/coracle/test/history"
)

// habit is how a client lists and watches.
type habit struct {
	name  string
	start history.Start
	color string
	// cut is the maximum number of events after which the client ends a stream; 0 for never. The next stream
	// resumes there.
	cut int
	// bookmarks asks for bookmarks and a short timeout, so that the stream ends with a bookmark.
	bookmarks bool
	// slow is the number of writes that the client waits for after each event.
	slow int
	// recent asks for the newest state instead of any, if the stream begins with history.Anywhere.
	recent bool
	// witness never stops, and records the revision that it has reached.
	witness bool
}

var habits = []habit{
	{name: "witness", witness: true},
	{name: "cutter", cut: 20},
	{name: "impatient", cut: 2},
	{name: "bookmarks", bookmarks: true},
	{name: "red", color: "red", cut: 10},
	{name: "red with bookmarks", color: "red", bookmarks: true},
	{name: "slow", slow: 40},
	{name: "slow with bookmarks", slow: 15, bookmarks: true},
	{name: "slow blue", slow: 100, color: "blue", cut: 30},
	{name: "streamed", start: history.Streamed, bookmarks: true, cut: 60},
	{name: "streamed blue", start: history.Streamed, bookmarks: true, color: "blue", cut: 40},
	{name: "anywhere", start: history.Anywhere, cut: 50},
	{name: "anywhere recent", start: history.Anywhere, cut: 50, recent: true},
	{name: "anywhere red", start: history.Anywhere, cut: 40, color: "red"},
}

// follow opens one watch after the other.
func (c *crowd) follow(ctx context.Context, h habit) {
	api := c.client()
	var from int64 // 0: no state to resume from
	for ctx.Err() == nil {
		generation := c.gate.pass(ctx)
		if from == 0 && h.start == history.After {
			from = c.list(ctx, api, h.name, h.color, metav1.ListOptions{})
			if h.witness {
				c.note(func() { c.told = from })
			}
			continue
		}
		s, again, err := c.stream(ctx, api, h, from)
		if err != nil {
			c.failed(ctx, generation, h.name+": watch", err)
		}
		c.note(func() { c.h.Streams = append(c.h.Streams, s) })
		from = again
	}
}

// stream runs one watch and returns the revision to resume from.
func (c *crowd) stream(ctx context.Context, api kubernetes.Interface, h habit,
	from int64) (s history.Stream, again int64, err error) {
	s = history.Stream{Client: h.name, Start: h.start, From: from, Color: h.color}
	w, err := api.CoreV1().ConfigMaps(crowdNamespace).Watch(ctx, c.options(h, &s))
	if err != nil {
		return s, c.afterError(err, from), ignoreExpired(err)
	}
	defer w.Stop()
	limit := -1
	if h.cut > 0 {
		limit = 1 + rand.IntN(h.cut)
	}
	again = from
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			err := apierrors.FromObject(e.Object)
			return s, c.afterError(err, again), ignoreExpired(err)
		}
		m, is := e.Object.(*corev1.ConfigMap)
		if !is {
			return s, again, fmt.Errorf("an event with a %T", e.Object)
		}
		again = revision(m.ResourceVersion)
		if event, ours := eventOf(e.Type, m); ours {
			s.Events = append(s.Events, event)
		}
		if h.witness {
			c.note(func() { c.told = again })
		}
		if limit--; limit == 0 {
			c.cuts.Add(1)
			return s, again, nil
		}
		if h.slow > 0 {
			c.writes(ctx, h.slow)
		}
	}
	return s, again, nil
}

func (c *crowd) options(h habit, s *history.Stream) metav1.ListOptions {
	o := metav1.ListOptions{AllowWatchBookmarks: h.bookmarks}
	if h.color != "" {
		o.LabelSelector = "color=" + h.color
	}
	if h.bookmarks {
		o.TimeoutSeconds = new(int64(1))
	}
	switch h.start {
	case history.After:
		o.ResourceVersion = fmt.Sprint(s.From)
	case history.Streamed:
		o.SendInitialEvents, o.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
		s.AtLeast = c.acknowledged.Load()
		if rand.IntN(2) == 0 {
			o.ResourceVersion = fmt.Sprint(s.AtLeast)
		}
	case history.Anywhere:
		o.ResourceVersion = "0"
		if h.recent {
			o.ResourceVersion, s.AtLeast = "", c.acknowledged.Load()
		}
	}
	return o
}

func eventOf(t watch.EventType, m *corev1.ConfigMap) (e history.Event, ours bool) {
	e = history.Event{Type: string(t), Revision: revision(m.ResourceVersion)}
	if t == watch.Bookmark {
		e.End = m.Annotations[metav1.InitialEventsAnnotationKey] == "true"
		return e, true
	}
	e.Key, e.State = m.Name, stateOf(m)
	return e, e.State.ID != "" // other config maps are not the test's: every namespace has the cluster's authority
}

// afterError returns the revision to resume from: 0 if the history is gone.
func (c *crowd) afterError(err error, from int64) int64 {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		c.expired.Add(1)
		return 0
	}
	return from
}

func ignoreExpired(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil
	}
	return err
}

// list lists with options and follows pages, with writes in between. It returns the revision, or 0 on failure.
func (c *crowd) list(ctx context.Context, api kubernetes.Interface, name, color string, o metav1.ListOptions) int64 {
	generation := c.gate.pass(ctx)
	l := history.List{Client: name, Color: color, Items: map[string]history.Item{}}
	if color != "" {
		o.LabelSelector = "color=" + color
	}
	switch {
	case o.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		l.Exact = revision(o.ResourceVersion)
	case o.ResourceVersionMatch == metav1.ResourceVersionMatchNotOlderThan:
		l.AtLeast = revision(o.ResourceVersion)
	case o.ResourceVersion == "":
		l.AtLeast = c.acknowledged.Load()
	}
	for {
		page, err := api.CoreV1().ConfigMaps(crowdNamespace).List(ctx, o)
		if err != nil {
			if c.afterError(err, 1) != 0 {
				c.failed(ctx, generation, name+": list", err)
			}
			return 0
		}
		for i := range page.Items {
			if m := &page.Items[i]; m.Data["id"] != "" {
				l.Items[m.Name] = history.Item{Revision: revision(m.ResourceVersion), State: stateOf(m)}
			}
		}
		l.Revision = revision(page.ResourceVersion)
		if page.Continue == "" {
			break
		}
		o.Continue, o.ResourceVersion, o.ResourceVersionMatch = page.Continue, "", ""
		c.writes(ctx, 3)
	}
	if l.Exact > 0 {
		c.exact.Add(1)
	}
	c.note(func() { c.h.Lists = append(c.h.Lists, l) })
	return l.Revision
}

// readLists lists with all combinations of options, until the test is over.
func (c *crowd) readLists(ctx context.Context) {
	api := c.client()
	var seen []int64
	for c.writes(ctx, 5) {
		o, color := metav1.ListOptions{}, ""
		if rand.IntN(3) == 0 {
			color = "red"
		}
		kind := rand.IntN(6)
		switch {
		case kind == 0:
			o.ResourceVersion = "0"
		case kind == 1:
			o.ResourceVersion, o.ResourceVersionMatch = fmt.Sprint(c.acknowledged.Load()),
				metav1.ResourceVersionMatchNotOlderThan
		case kind == 2 && len(seen) > 0:
			o.ResourceVersion, o.ResourceVersionMatch = fmt.Sprint(seen[rand.IntN(len(seen))]), metav1.ResourceVersionMatchExact
		case kind == 3:
			o.Limit = 1 + rand.Int64N(7)
		case kind == 4 && len(seen) > 0:
			o.Limit, o.ResourceVersion, o.ResourceVersionMatch = 3, fmt.Sprint(seen[len(seen)-
				1]), metav1.ResourceVersionMatchExact
		}
		if rev := c.list(ctx, api, fmt.Sprintf("lister of kind %d", kind), color, o); rev > 0 {
			seen = append(seen, rev)
		}
	}
}
