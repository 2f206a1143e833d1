// Package model drives reconcilers one step at a time over an in-memory API, for tests in which users, nodes and
// reconcilers interleave at random (rapid). Caches may lag, writes may fail, and the process may be killed after any
// write; the next process starts from the stored objects.
//
// Only tests import it. Its invariant: rapid alone makes all choices, so that each failure can be replayed.
package model

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// retryAfter is the delay before a failed request is retried. Times in objects have whole seconds, and so has a
// world's clock.
const retryAfter = time.Second

// lives multiplies rapid's number of actions, because an interleaving takes several actors.
const lives = 12

// World is a cluster of objects and the reconcilers that act on them.
type World struct {
	// T is the test.
	T *rapid.T
	// Now is the current time. Only Pass and Settle change it.
	Now time.Time
	// OnCreate, if not nil, may handle a creation, for example of a review. It then returns true.
	OnCreate func(client.Object) bool
	// OnDelete, if not nil, is called after each deletion by a reconciler.
	OnDelete func(client.Object)
	// OnUpdate, if not nil, is called before each update by a reconciler is stored.
	OnUpdate func(was, is client.Object)
	// Pause is how long Live waits: the longest polling interval of reconcilers for changes without an event.
	Pause time.Duration

	scheme *runtime.Scheme
	api    *api
	list   []*engine.Reconciler
	live   []*engine.Detached
	queue  []request
	check  func()
}

// request is a reconciler's request, and the earliest time to handle it.
type request struct {
	reconciler int
	engine.Request
	at time.Time
}

// New returns an empty world with reconcilers.
func New(t *rapid.T, list ...*engine.Reconciler) *World {
	w := &World{T: t, Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), scheme: clientgoscheme.Scheme, list: list}
	w.api = &api{w: w, stored: map[key]client.Object{}, cached: map[key]client.Object{}, left: -1}
	w.check = func() {}
	w.Restart()
	return w
}

func (w *World) must(err error) {
	if err != nil {
		w.T.Fatalf("the model: %v", err)
	}
}

// Restart replaces the process that runs the reconcilers. The new caches show the stored objects.
func (w *World) Restart() {
	w.queue, w.live = nil, nil
	w.api.left, w.api.fail, w.api.pending, w.api.cached = -1, nil, nil, map[key]client.Object{}
	for i, r := range w.list {
		d, err := engine.Detach(r, w.api, func() time.Time { return w.Now }, func(req engine.Request, d time.Duration) {
			w.enqueue(i, req, d)
		})
		w.must(err)
		w.live = append(w.live, d)
	}
	for _, k := range sorted(w.api.stored) {
		w.api.cached[k] = w.api.stored[k]
	}
	w.check()
	for _, k := range sorted(w.api.stored) {
		w.happened(change{k, nil, w.api.stored[k]})
	}
}

func (w *World) enqueue(reconciler int, r engine.Request, d time.Duration) {
	at := w.Now.Add(max(d, 0) + time.Second - 1).Truncate(time.Second)
	for i := range w.queue {
		if q := &w.queue[i]; q.reconciler == reconciler && q.Request == r {
			if at.Before(q.at) {
				q.at = at
			}
			return
		}
	}
	w.queue = append(w.queue, request{reconciler, r, at})
}

func (w *World) happened(c change) {
	metadata := func(o client.Object) client.Object {
		if o == nil || reflect.ValueOf(o).IsNil() {
			return nil
		}
		m := &metav1.PartialObjectMetadata{}
		m.SetName(o.GetName())
		m.SetNamespace(o.GetNamespace())
		m.SetUID(o.GetUID())
		m.SetGroupVersionKind(c.key.gvk)
		return m
	}
	for _, d := range w.live {
		d.Changed(c.key.gvk, c.was, c.is, metadata)
	}
}

// Deliver shows the next n changes to the caches; negative means all.
func (w *World) Deliver(n int) {
	for ; n != 0 && len(w.api.pending) > 0; n-- {
		c := w.api.pending[0]
		w.api.pending = w.api.pending[1:]
		if c.is == nil {
			delete(w.api.cached, c.key)
		} else {
			w.api.cached[c.key] = c.is
		}
		w.check()
		w.happened(c)
	}
}

// Work lets a reconciler handle a request, if there is one. The process may be killed meanwhile, or a write may fail.
func (w *World) Work(t *rapid.T) {
	due := w.due()
	if len(due) == 0 {
		return
	}
	r := rapid.SampledFrom(due).Draw(t, "request")
	switch rapid.IntRange(0, 5).Draw(t, "fate") {
	case 0: // killed
		w.api.left = rapid.IntRange(0, 3).Draw(t, "writes")
	case 1:
		w.api.left, w.api.fail = rapid.IntRange(0, 3).Draw(t, "writes"), apierrors.NewServiceUnavailable("no quorum")
	}
	killed := w.handle(r)
	if w.api.left == 0 && w.api.fail == nil || killed {
		w.Restart()
	}
	w.api.left, w.api.fail = -1, nil
}

func (w *World) due() []request {
	var due []request
	for _, r := range w.queue {
		if !r.at.After(w.Now) {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b request) int {
		return cmp.Or(cmp.Compare(a.reconciler, b.reconciler), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	return due
}

// handle handles a request, and reports whether the process died.
func (w *World) handle(r request) bool {
	w.queue = slices.DeleteFunc(w.queue, func(q request) bool {
		return q.reconciler == r.reconciler && q.Request == r.Request
	})
	res, err := w.live[r.reconciler].Func(context.Background(), r.Request)
	switch {
	case errors.Is(err, errKilled):
		return true
	case err != nil:
		w.enqueue(r.reconciler, r.Request, retryAfter)
	case res.RequeueAfter > 0:
		w.enqueue(r.reconciler, r.Request, res.RequeueAfter)
	}
	w.Deliver(-1) // the engine waits until the cache shows a request's writes
	return false
}

func (w *World) Pass(d time.Duration) { w.Now = w.Now.Add(d) }

// Settle lets the reconcilers finish within a time, including retries of failed requests. After that, and after a
// restart, they must not write.
func (w *World) Settle(within time.Duration) {
	until := w.Now.Add(max(within, retryAfter))
	w.run(until)
	before := w.api.writes
	w.Restart()
	w.run(w.Now)
	if w.api.writes != before {
		w.T.Fatalf("at rest, a second pass writes: %v", w.api.pending)
	}
}

func (w *World) run(until time.Time) {
	w.Deliver(-1)
	for range 10_000 {
		if len(w.queue) == 0 {
			return
		}
		next := slices.MinFunc(w.queue, func(a, b request) int { return a.at.Compare(b.at) })
		if next.at.After(until) {
			w.Now = until
			return
		}
		if next.at.After(w.Now) {
			w.Now = next.at
		}
		w.handle(next)
	}
	w.T.Fatalf("no rest: %v", w.queue)
}

func compare(a, b key) int {
	return cmp.Or(cmp.Compare(a.gvk.String(), b.gvk.String()), cmp.Compare(a.namespace, b.namespace),
		cmp.Compare(a.name, b.name))
}

// Stored returns the stored objects of a kind by name. Do not modify them.
func Stored[T client.Object](w *World) map[string]T { return of[T](w.api.stored) }

// Cached returns the objects of a kind that reconcilers see.
func Cached[T client.Object](w *World) map[string]T { return of[T](w.api.cached) }

func of[T client.Object](all map[key]client.Object) map[string]T {
	out := map[string]T{}
	for k, o := range all {
		if t, ok := o.(T); ok {
			out[k.name] = t
		}
	}
	return out
}

// Create creates an object as a user would, unless the name is taken.
func (w *World) Create(o client.Object) {
	if err := w.api.Create(context.Background(), o); err != nil && !apierrors.IsAlreadyExists(err) {
		w.must(err)
	}
}

// Update changes an object and its status as a user would, if it exists.
func Update[T client.Object](w *World, name string, f func(T)) {
	was, ok := Stored[T](w)[name]
	if !ok {
		return
	}
	next := was.DeepCopyObject().(T)
	f(next)
	w.api.replace(w.api.key(was), next, next.DeepCopyObject().(T))
}

// Delete deletes an object as a user would, if it exists.
func Delete[T client.Object](w *World, name string, opts ...client.DeleteOption) {
	if o, ok := Stored[T](w)[name]; ok {
		w.must(w.api.remove(o, opts...))
	}
}

// Live runs random actions of users and nodes, given by name, and of the environment: a reconciler works, caches catch
// up, time passes, the process restarts. It calls check after each action and each change of the caches. At times all
// others pause until nothing is left to do.
func (w *World) Live(actions map[string]func(*rapid.T), check func()) {
	w.check = check
	all := map[string]func(*rapid.T){
		"work":    w.Work,
		"work on": w.Work, // it is drawn more often
		"deliver": func(t *rapid.T) { w.Deliver(rapid.IntRange(1, 5).Draw(t, "changes")) },
		"time":    func(t *rapid.T) { w.Pass(time.Duration(rapid.IntRange(1, 100).Draw(t, "seconds")) * time.Second) },
		"restart": func(*rapid.T) { w.Restart() },
		"":        func(*rapid.T) { check() },
	}
	maps.Copy(all, actions)
	for range lives {
		w.T.Repeat(all)
		w.Settle(w.Pause)
	}
}
