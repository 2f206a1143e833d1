package engine

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

// awaitKinds waits until the API server has all kinds that the reconciler requires: other API servers may lack our
// kinds, or get them later. Meanwhile the reconciler counts as synced. It returns false if ctx ends first.
func (l *life) awaitKinds(ctx context.Context, synced func()) bool {
	for said := false; ; {
		needed, _, changed := l.missing()
		if needed == "" {
			return true
		}
		if !said {
			said = true
			l.log.Info("reconciler waits for a kind that the API server does not have", "kind", needed)
			l.observer.synced.Store(true)
			synced()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// missing returns a required kind that the API server lacks, or "", and the optional kinds that it lacks. The channel
// is closed when the result may be out of date.
func (l *life) missing() (needed string, optional map[schema.GroupKind]bool, changed <-chan struct{}) {
	if l.kinds == nil {
		return "", nil, nil
	}
	all, changed := l.kinds.Stored()
	have := map[schema.GroupKind]bool{}
	for _, k := range all {
		have[k.GroupVersionKind.GroupKind()] = true
	}
	optional = map[schema.GroupKind]bool{}
	for _, w := range l.r.Watches {
		gk, err := l.declared.kind(w.Object)
		switch {
		case err != nil || have[gk]:
		case w.Optional:
			optional[gk] = true
		default:
			needed = gk.String()
		}
	}
	return needed, optional, changed
}

// errMoreKinds ends a reconciler so that it starts again with an optional kind that has become available.
var errMoreKinds = errors.New("the API server has a further kind")

// awaitMore ends the reconciler when the API server gets one of the optional kinds that it lacked.
func (l *life) awaitMore(ctx context.Context, without int, end context.CancelCauseFunc) {
	for {
		_, absent, changed := l.missing()
		if len(absent) < without {
			end(errMoreKinds)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// without is a cache in which kinds that the API server lacks have no objects. It does not watch them.
type without struct {
	client.Reader
	declared *declared
	absent   map[schema.GroupKind]bool
}

func (w without) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if gk, err := w.declared.kind(o); err == nil && w.absent[gk] {
		return apierrors.NewNotFound(schema.GroupResource{Group: gk.Group, Resource: gk.Kind}, key.Name)
	}
	return w.Reader.Get(ctx, key, o, opts...)
}

func (w without) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if gk, err := w.declared.listed(list); err == nil && w.absent[gk] {
		return meta.SetList(list, nil)
	}
	return w.Reader.List(ctx, list, opts...)
}

// awaitFirst waits for the first object of the kind When. It returns false if ctx ends before.
func (l *life) awaitFirst(ctx context.Context) bool {
	first := make(chan struct{})
	var once sync.Once
	again := backoff.Backoff{First: crashFirst, Most: crashMost}
	for {
		inf, err := l.client.Cache().GetInformer(ctx, l.r.When)
		if err == nil {
			reg, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { once.Do(func() { close(first) }) },
			})
			if err == nil {
				select {
				case <-first:
				case <-ctx.Done():
				}
				_ = inf.RemoveEventHandler(reg)
				return ctx.Err() == nil
			}
		}
		if ctx.Err() != nil {
			return false
		}
		pause := again.Next()
		l.log.Debug("could not watch the kind that the reconciler waits for, retrying", "after", pause, "error", err)
		if !backoff.Sleep(ctx, pause) {
			return false
		}
	}
}
