package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// page is the limit of one list request.
	page = 250
	// lifetime is the shortest timeout of a watch; the longest is twice that.
	lifetime = 5 * time.Minute
	// readTime limits one list page or get.
	readTime = 30 * time.Second
)

// newList returns an empty list of the kind, for list and watch.
func (w *watcher) newList() *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(w.kind.GroupVersion().WithKind(w.kind.Kind + "List"))
	return l
}

var errTooMany = fmt.Errorf("the cluster has more than %d objects of Kontrol of this kind", maxObjects)

// list reads all objects and returns the resourceVersion to watch from.
func (w *watcher) list(ctx context.Context, c client.WithWatch) (version string, err error) {
	w.reached = position{} // the list is newer than a watch from the old position
	found := map[types.NamespacedName]bool{}
	next := ""
	for {
		l := w.newList()
		reading, cancel := context.WithTimeout(ctx, readTime)
		err := c.List(reading, l, &client.ListOptions{LabelSelector: selector, Limit: page, Continue: next})
		cancel()
		if err != nil {
			return "", err
		}
		before := len(found)
		for i := range l.Items {
			o := &l.Items[i]
			at := client.ObjectKeyFromObject(o)
			found[at] = true
			if !w.same(at, o.GetResourceVersion()) && !w.put(at, o) {
				return "", errTooMany
			}
		}
		if next = l.GetContinue(); next == "" {
			version = l.GetResourceVersion()
			break
		}
		if len(found) > maxObjects {
			return "", errTooMany
		}
		if len(found) == before { // could continue forever
			return "", errors.New("the cluster answered a list with a page without new objects that is not the last one")
		}
	}
	// Known objects that are not listed were deleted, or only lost their label: get each to find out.
	for _, at := range w.others(found) {
		o, err := w.get(ctx, c, at)
		if err != nil {
			return "", err
		}
		w.put(at, o)
	}
	w.follows(true)
	return version, nil
}

// follows records that the objects are known and watched.
func (w *watcher) follows(listed bool) {
	w.doubted = false
	w.mu.Lock()
	changed := listed || w.reason != ""
	w.known, w.reason, w.error = true, "", ""
	w.mu.Unlock()
	if changed {
		w.all()
	}
}

// get reads one object. It returns nil if the object does not exist.
func (w *watcher) get(ctx context.Context, c client.WithWatch,
	at types.NamespacedName) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(w.kind.GroupVersionKind)
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if err := c.Get(ctx, at, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

// open starts a watch from a version. The caller must call end.
func (w *watcher) open(ctx context.Context, c client.WithWatch, version string,
	o *client.ListOptions) (events <-chan apiwatch.Event, end func(), err error) {
	seconds := int64((lifetime + rand.N(lifetime)) / time.Second)
	o.Raw = &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds}
	watch, err := c.Watch(ctx, w.newList(), o)
	if err != nil {
		return nil, nil, expired(err)
	}
	return watch.ResultChan(), func() {
		watch.Stop()
		go func() { // drain: the watch may block on a send
			for range watch.ResultChan() {
			}
		}()
	}, nil
}

// watch follows the changes after w.reached until the watch ends normally.
func (w *watcher) watch(ctx context.Context, c client.WithWatch, g *guards) error {
	began := time.Now()
	events, end, err := w.open(ctx, c, w.reached.version, &client.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	defer end()
	w.follows(false)
	for {
		select {
		case <-ctx.Done():
			return ErrUnreachable
		case <-g.timer.C:
			if err := g.read(); err != nil {
				return err
			}
		case e, ok := <-events:
			if !ok && time.Since(began) < time.Second {
				return errors.New("the cluster ended the watch at once")
			}
			if !ok {
				return nil
			}
			if err := w.take(ctx, c, e); err != nil {
				return err
			}
		}
		g.update()
	}
}

// take records an event and advances w.reached.
func (w *watcher) take(ctx context.Context, c client.WithWatch, e apiwatch.Event) error {
	u, version, err := decode(e)
	if err != nil {
		return err
	}
	if older(version, w.reached.version) {
		return errExpired // the cluster was restored to an older state
	}
	if u != nil {
		if err := w.event(ctx, c, e.Type, u); err != nil {
			return err
		}
	}
	if version != "" {
		w.reached.version = version
	}
	return nil
}

// decode returns an event's object, or nil for a bookmark, and its resourceVersion.
func decode(e apiwatch.Event) (u *unstructured.Unstructured, version string, err error) {
	if e.Type == apiwatch.Error {
		return nil, "", expired(apierrors.FromObject(e.Object))
	}
	o, ok := e.Object.(client.Object)
	if !ok {
		return nil, "", fmt.Errorf("the cluster sent an event with a %T", e.Object)
	}
	if e.Type != apiwatch.Bookmark {
		u, _ = o.(*unstructured.Unstructured)
	}
	return u, o.GetResourceVersion(), nil
}

func (w *watcher) event(ctx context.Context, c client.WithWatch, t apiwatch.EventType,
	u *unstructured.Unstructured) error {
	at := client.ObjectKeyFromObject(u)
	if t == apiwatch.Deleted { // deleted, or it only lost its label
		var err error
		if u, err = w.get(ctx, c, at); err != nil {
			return err
		}
	}
	if !w.put(at, u) {
		return errTooMany
	}
	w.notify(at)
	return nil
}

// expired returns errExpired for errors after which a list must come before the next watch.
func expired(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return errExpired
	}
	return err
}
