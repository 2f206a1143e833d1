package engine

import (
	"context"
	"reflect"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is how long a request waits until the cache shows its own writes. Then it runs anyway: another client may
// have undone a write before the cache saw it.
const patience = 30 * time.Second

// write is a write of a call, to look for in the cache.
type write struct {
	kind reflect.Type
	key  client.ObjectKey
	uid  types.UID
	rev  uint64 // 0 for a deletion
	verb verb
}

type verb int

const (
	created verb = iota
	updated
	deleted
)

type journal struct {
	mu     sync.Mutex
	writes []write
}

type journalKey struct{}

// note records a successful write in the journal of ctx's call.
func note(ctx context.Context, o client.Object, err error, v verb) {
	j, _ := ctx.Value(journalKey{}).(*journal)
	if j == nil || err != nil {
		return
	}
	w := write{kind: reflect.TypeOf(o).Elem(), key: client.ObjectKeyFromObject(o), uid: o.GetUID(), verb: v}
	if v != deleted {
		w.rev, _ = strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes = append(j.writes, w)
}

// shown reports whether the cache reflects a write. It is true for kinds that the reconciler does not read.
func (w write) shown(ctx context.Context, r reader) bool {
	o := reflect.New(w.kind).Interface().(client.Object)
	if r.mayRead(o, false) != nil {
		return true
	}
	err := r.Get(ctx, w.key, o)
	switch {
	case apierrors.IsNotFound(err):
		return w.verb != created // the object was deleted after the update
	case err != nil:
		return true
	case w.uid != "" && o.GetUID() != w.uid:
		return true // replaced meanwhile
	case w.verb == deleted:
		return o.GetDeletionTimestamp() != nil
	}
	rev, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return err != nil || rev >= w.rev
}

type unshown struct {
	writes []write
	until  time.Time
}

// journaled wraps f so that a request is delayed while the cache does not show its earlier writes. Their event
// enqueues it again, because a reconciler only writes kinds that it watches; patience bounds the wait. With the
// in-process client every write is shown when it returns, so nothing is delayed.
func journaled(r reader, now func() time.Time, f Func) Func {
	var mu sync.Mutex
	pending := map[Request]unshown{}
	missing := func(ctx context.Context, ws []write) []write {
		var out []write
		for _, w := range ws {
			if !w.shown(ctx, r) {
				out = append(out, w)
			}
		}
		return out
	}
	return func(ctx context.Context, req Request) (Result, error) {
		mu.Lock()
		was, ok := pending[req]
		mu.Unlock()
		if ok {
			if wait := was.until.Sub(now()); wait > 0 && len(missing(ctx, was.writes)) > 0 {
				return Result{RequeueAfter: wait}, nil
			}
			mu.Lock()
			delete(pending, req)
			mu.Unlock()
		}
		j := &journal{}
		res, err := f(context.WithValue(ctx, journalKey{}, j), req)
		if left := missing(ctx, j.writes); len(left) > 0 {
			mu.Lock()
			pending[req] = unshown{left, now().Add(patience)}
			mu.Unlock()
			if err == nil && (res.RequeueAfter == 0 || res.RequeueAfter > patience) {
				res.RequeueAfter = patience
			}
		}
		return res, err
	}
}
