package engine

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

// Detached is a reconciler without informers and a queue, for package model, which runs one step at a time.
type Detached struct {
	Func     Func
	handlers []detachedHandler
}

type detachedHandler struct {
	handler
	kind reflect.Type
	gvk  schema.GroupVersionKind // of a metadata-only watch
}

// Detach starts a reconciler over a client, from which it also reads. Its events and calls of Enqueue go to enqueue.
func Detach(r *Reconciler, c cc.Interface, now func() time.Time,
	enqueue func(Request, time.Duration)) (*Detached, error) {
	declared, err := declare(r, c.Scheme())
	if err != nil {
		return nil, err
	}
	ix := &indexes{scheme: c.Scheme(), values: map[string]func(client.Object) []string{}}
	for _, want := range r.Indexes {
		gvk, err := apiutil.GVKForObject(want.Object, c.Scheme())
		if err != nil {
			return nil, err
		}
		ix.values[indexKey(gvk.Kind, want.Name)] = want.Values
	}
	reads := reader{c, declared}
	env := Env{
		Client: guard{c, declared, c}, Cache: reads, Log: slog.New(slog.DiscardHandler), Now: now, indexes: ix,
		queue: enqueue,
		begin: func(f func(context.Context)) { f(context.Background()) },
	}
	d := &Detached{Func: r.New(env)}
	add := func(w Watch, gvk schema.GroupVersionKind) {
		w.Batch = nil
		s := &source{watch: w, env: env, crash: func(err error) { panic(err) }}
		h := handler{context.Background(), s, adder{add: func(r Request) { enqueue(r, 0) }}}
		d.handlers = append(d.handlers, detachedHandler{h, reflect.TypeOf(w.Object), gvk})
	}
	for _, w := range r.Watches {
		add(w, schema.GroupVersionKind{})
	}
	if r.Every != nil {
		for _, k := range r.Every.Now() {
			add(Watch{Object: r.Every.Object(k), Event: func(ctx context.Context, env Env, was, is client.Object) []Request {
				return r.Every.Event(ctx, env, k, was, is)
			}}, k.GroupVersionKind)
		}
	}
	return d, nil
}

// Changed handles one change: was is nil for an addition, is for a deletion. metadata converts an object to its
// metadata-only form.
func (d *Detached) Changed(gvk schema.GroupVersionKind, was, is client.Object,
	metadata func(client.Object) client.Object) {
	o := is
	if o == nil {
		o = was
	}
	for _, h := range d.handlers {
		a, b := was, is
		if h.kind != reflect.TypeOf(o) {
			if h.gvk != gvk {
				continue
			}
			a, b = metadata(was), metadata(is)
		}
		switch {
		case a == nil:
			h.OnAdd(b, false)
		case b == nil:
			h.OnDelete(a)
		default:
			h.OnUpdate(a, b)
		}
	}
}

// adder is a queue that only supports Add.
type adder struct {
	workqueue.TypedRateLimitingInterface[Request]
	add func(Request)
}

func (a adder) Add(r Request) { a.add(r) }
