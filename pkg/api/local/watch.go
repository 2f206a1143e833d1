package local

import (
	"context"
	"errors"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// clientWatch implements client-go's watch.Interface on a cache.Watcher.
type clientWatch struct {
	results chan watch.Event
	cancel  context.CancelFunc
}

func (w *clientWatch) Stop()                          { w.cancel() }
func (w *clientWatch) ResultChan() <-chan watch.Event { return w.results }

type viewFunc func(ctrl.Object) (ctrl.Object, error)

func (v viewFunc) of(e *cache.Entry) (ctrl.Object, error) {
	if v == nil {
		return e.Object, nil
	}
	return v(e.Object)
}

// bookmarkEvery is the interval of bookmarks while there are no events, as in the API server.
const bookmarkEvery = time.Minute

// newWatch sends initial, a bookmark at sync if o asks for initial events, and then the watcher's events, until Stop is
// called or ctx is done. If the watcher ends before, the last event is an error.
func newWatch(ctx context.Context, cancel context.CancelFunc, from *cache.Watcher, initial []*cache.Entry, sync int64,
	o *metav1.ListOptions, view viewFunc) *clientWatch {
	w := &clientWatch{results: make(chan watch.Event), cancel: cancel}
	send := func(t watch.EventType, e *cache.Entry) bool {
		o, err := view.of(e)
		ev := watch.Event{Type: t, Object: o}
		if err != nil {
			ev = watch.Event{Type: watch.Error, Object: failure(err)}
		}
		select {
		case w.results <- ev:
			return err == nil
		case <-ctx.Done():
			return false
		}
	}
	bookmark := func(rev int64, notes map[string]string) bool {
		b := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version(rev), Annotations: notes}}
		select {
		case w.results <- watch.Event{Type: watch.Bookmark, Object: b}:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(w.results)
		defer from.Close()
		defer cancel()
		for _, e := range initial {
			if !send(watch.Added, e) {
				return
			}
		}
		if ptr.Deref(o.SendInitialEvents, false) &&
			!bookmark(sync, map[string]string{metav1.InitialEventsAnnotationKey: "true"}) {
			return
		}
		for {
			reading, done := ctx, func() {}
			if o.AllowWatchBookmarks {
				reading, done = context.WithTimeout(ctx, bookmarkEvery)
			}
			events, err := from.Next(reading)
			done()
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				if !from.Ahead() && !bookmark(from.Progress(), nil) {
					return
				}
				continue
			}
			if err != nil {
				if ctx.Err() == nil {
					select {
					case w.results <- watch.Event{Type: watch.Error, Object: failure(err)}:
					case <-ctx.Done():
					}
				}
				return
			}
			for _, e := range events {
				if e.Entry != nil && !send(watch.EventType(e.Type), e.Entry) {
					return
				}
			}
		}
	}()
	return w
}

// failure returns the Status of a watch's final error event.
func failure(err error) *metav1.Status {
	if errors.Is(err, cache.ErrExpired) {
		return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone,
			Message: "the watch fell too far behind: list again"}
	}
	return &metav1.Status{
		Status:  metav1.StatusFailure,
		Reason:  metav1.StatusReasonInternalError,
		Code:    http.StatusInternalServerError,
		Message: err.Error(),
	}
}
