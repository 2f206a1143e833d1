package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kontrol/object"
)

const (
	// retryFirst to retryMost is the time until a watch that failed is tried again.
	retryFirst = 200 * time.Millisecond
	retryMost  = 30 * time.Second
	// page is the number of objects in one answer to a list.
	page = 250
	// lifetime is the shortest time after which a watch is renewed; the longest is twice that.
	lifetime = 5 * time.Minute
	// readTime limits one list or get.
	readTime = 30 * time.Second
	// unlabelledInterval is how often objects are read that lost the label by which they are watched.
	unlabelledInterval = 30 * time.Second
)

// selector selects the objects that Kontrol applied.
var selector = func() labels.Selector {
	r, err := labels.NewRequirement(kontrol.LabelID, selection.Exists, nil)
	if err != nil {
		return labels.Nothing()
	}
	return labels.NewSelector().Add(*r)
}()

// errExpired means that a list must be made again.
var errExpired = errors.New("the watch has expired")

// watcher follows the objects of a kind on a cluster.
type watcher struct {
	hub    *Hub
	kind   kind
	ended  context.Context
	cancel context.CancelFunc
	wake   chan struct{}

	mu            sync.Mutex
	known         bool
	reason, error string
	objects       map[types.NamespacedName]stored
	wants         map[types.NamespacedName]map[Pair]bool
	unlabelled    map[types.NamespacedName]bool
}

func newWatcher(h *Hub, k kind) *watcher {
	ended, cancel := context.WithCancel(context.Background())
	return &watcher{hub: h, kind: k, ended: ended, cancel: cancel, wake: make(chan struct{}, 1), objects: map[types.NamespacedName]stored{},
		wants: map[types.NamespacedName]map[Pair]bool{}, unlabelled: map[types.NamespacedName]bool{}}
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) want(at types.NamespacedName, p Pair) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wants[at] == nil {
		w.wants[at] = map[Pair]bool{}
	}
	w.wants[at][p] = true
}

// unwant reports whether nothing is wanted any more.
func (w *watcher) unwant(at types.NamespacedName, p Pair) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wants[at], p)
	if len(w.wants[at]) == 0 {
		delete(w.wants, at)
	}
	return len(w.wants) == 0
}

func (w *watcher) look(at types.NamespacedName) Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Seen{Known: w.known, Reason: w.reason, Error: w.error, Object: w.objects[at].object()}
}

// stored is an object as JSON, which needs a fifth of the memory.
type stored []byte

func store(o *unstructured.Unstructured) stored {
	raw, err := o.MarshalJSON()
	if err != nil {
		return nil
	}
	return raw
}

func (s stored) object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if s == nil || o.UnmarshalJSON(s) != nil {
		return nil
	}
	return o
}

// run follows the objects until the last pair is dropped or ctx ends.
func (w *watcher) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.cancel)
	defer stop()
	defer w.cancel()
	pause := retryFirst
	for w.ended.Err() == nil {
		began := time.Now()
		err := w.once()
		if w.ended.Err() != nil {
			return
		}
		if time.Since(began) > retryMost {
			pause = retryFirst
		}
		if !errors.Is(err, errExpired) {
			w.failed(err)
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-w.ended.Done():
		case <-w.wake:
			pause = retryFirst
		case <-timer.C:
			pause = min(2*pause, retryMost)
		}
		timer.Stop()
	}
}

// once follows the objects until that fails.
func (w *watcher) once() error {
	t := w.hub.pool.Get(w.kind.cluster)
	if t == nil || t.Client() == nil {
		return errUnreachable
	}
	c := t.Client()
	ctx, cancel := context.WithCancel(w.ended)
	defer cancel()
	go func() { // until the connection ends
		select {
		case <-t.Done():
		case <-ctx.Done():
		}
		cancel()
	}()
	if _, err := c.RESTMapper().RESTMapping(w.kind.GroupKind(), w.kind.Version); err != nil {
		return err
	}
	version, err := w.list(ctx, c)
	for err == nil {
		version, err = w.watch(ctx, c, version)
	}
	return err
}

var errUnreachable = errors.New("the cluster does not answer")

// failed records why the objects cannot be followed. What was known of a cluster that does not answer stays known: its condition says so.
func (w *watcher) failed(err error) {
	reason, message := "WatchFailed", err.Error()
	switch {
	case errors.Is(err, errUnreachable):
		return
	case meta.IsNoMatchError(err):
		reason, message = kontrol.ReasonNoKind, fmt.Sprintf("the cluster has no kind %s in %s yet: apply its CustomResourceDefinition", w.kind.Kind, w.kind.GroupVersion())
	case apierrors.IsForbidden(err):
		reason, message = "Forbidden", "the cluster's user may not list and watch it: "+err.Error()
	}
	w.mu.Lock()
	same := w.reason == reason
	w.reason, w.error = reason, object.Cut(message, kontrol.MaxError)
	w.mu.Unlock()
	if !same {
		w.all()
	}
}

// all tells all pairs.
func (w *watcher) all() {
	w.mu.Lock()
	var pairs []Pair
	for _, set := range w.wants {
		for p := range set {
			pairs = append(pairs, p)
		}
	}
	w.mu.Unlock()
	for _, p := range pairs {
		w.hub.changed(p)
	}
}

func (w *watcher) tell(at types.NamespacedName) {
	w.mu.Lock()
	var pairs []Pair
	for p := range w.wants[at] {
		pairs = append(pairs, p)
	}
	w.mu.Unlock()
	for _, p := range pairs {
		w.hub.changed(p)
	}
}

// objects of the watcher's kind, to list or watch.
func (w *watcher) newList() *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(w.kind.GroupVersion().WithKind(w.kind.Kind + "List"))
	return l
}

// list reads all objects, and returns the version from which to watch.
func (w *watcher) list(ctx context.Context, c client.WithWatch) (version string, err error) {
	found := map[types.NamespacedName]stored{}
	next := ""
	for {
		l := w.newList()
		reading, cancel := context.WithTimeout(ctx, readTime)
		err := c.List(reading, l, &client.ListOptions{LabelSelector: selector, Limit: page, Continue: next})
		cancel()
		if err != nil {
			return "", err
		}
		for i := range l.Items {
			o := &l.Items[i]
			found[client.ObjectKeyFromObject(o)] = store(o)
		}
		if len(found) > maxObjects {
			return "", fmt.Errorf("the cluster has more than %d objects of Kontrol of this kind", maxObjects)
		}
		if next = l.GetContinue(); next == "" {
			version = l.GetResourceVersion()
			break
		}
	}
	// What was known and is not listed has lost its label, or is gone: the cluster is asked.
	w.mu.Lock()
	var missing []types.NamespacedName
	for at := range w.objects {
		if found[at] == nil {
			missing = append(missing, at)
		}
	}
	w.mu.Unlock()
	for _, at := range missing {
		o, err := w.get(ctx, c, at)
		if err != nil {
			return "", err
		}
		if o != nil {
			found[at] = store(o)
		}
	}
	w.mu.Lock()
	w.known, w.reason, w.error, w.objects = true, "", "", found
	clear(w.unlabelled)
	for _, at := range missing {
		if found[at] != nil {
			w.unlabelled[at] = true
		}
	}
	w.mu.Unlock()
	w.all()
	return version, nil
}

// get reads one object; nil if it does not exist.
func (w *watcher) get(ctx context.Context, c client.WithWatch, at types.NamespacedName) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(w.kind.GroupVersionKind)
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if err := c.Get(ctx, at, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

// watch follows the changes after a version, and returns the version it has reached when the watch ends in order.
func (w *watcher) watch(ctx context.Context, c client.WithWatch, version string) (string, error) {
	seconds := int64((lifetime + rand.N(lifetime)) / time.Second)
	began := time.Now()
	events, err := c.Watch(ctx, w.newList(), &client.ListOptions{LabelSelector: selector,
		Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds}})
	if err != nil {
		return "", expired(err)
	}
	defer func() {
		events.Stop()
		go func() { // a watch may wait to deliver
			for range events.ResultChan() {
			}
		}()
	}()
	timer := time.NewTimer(unlabelledInterval)
	timer.Stop()
	defer timer.Stop()
	armed := false
	for {
		select {
		case <-ctx.Done():
			return "", errUnreachable
		case <-timer.C:
			armed = false
			for _, at := range w.lost() {
				if err := w.reread(ctx, c, at); err != nil {
					return "", err
				}
			}
		case e, ok := <-events.ResultChan():
			switch {
			case !ok && time.Since(began) < time.Second:
				return "", errors.New("the cluster ended the watch at once")
			case !ok:
				return version, nil
			case e.Type == apiwatch.Error:
				return "", expired(apierrors.FromObject(e.Object))
			}
			o, isObject := e.Object.(client.Object)
			if !isObject {
				return "", fmt.Errorf("the cluster sent an event with a %T", e.Object)
			}
			if v := o.GetResourceVersion(); v != "" {
				version = v
			}
			u, isFull := o.(*unstructured.Unstructured)
			if e.Type == apiwatch.Bookmark || !isFull {
				continue
			}
			if err := w.event(ctx, c, e.Type, u); err != nil {
				return "", err
			}
		}
		if !armed && len(w.lost()) > 0 {
			timer.Reset(unlabelledInterval)
			armed = true
		}
	}
}

func (w *watcher) event(ctx context.Context, c client.WithWatch, t apiwatch.EventType, u *unstructured.Unstructured) error {
	at := client.ObjectKeyFromObject(u)
	if t == apiwatch.Deleted {
		return w.reread(ctx, c, at)
	}
	w.mu.Lock()
	full := w.objects[at] == nil && len(w.objects) >= maxObjects
	if !full {
		w.objects[at] = store(u)
		delete(w.unlabelled, at)
	}
	w.mu.Unlock()
	if full {
		return fmt.Errorf("the cluster has more than %d objects of Kontrol of this kind", maxObjects)
	}
	w.tell(at)
	return nil
}

// reread asks the cluster for an object that is gone, or has lost its label.
func (w *watcher) reread(ctx context.Context, c client.WithWatch, at types.NamespacedName) error {
	o, err := w.get(ctx, c, at)
	if err != nil {
		return err
	}
	w.mu.Lock()
	delete(w.objects, at)
	delete(w.unlabelled, at)
	if o != nil && len(w.wants[at]) > 0 {
		w.objects[at] = store(o)
		if !selector.Matches(labels.Set(o.GetLabels())) {
			w.unlabelled[at] = true
		}
	}
	w.mu.Unlock()
	w.tell(at)
	return nil
}

// lost returns the objects that lost the label by which they are watched.
func (w *watcher) lost() (list []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := range w.unlabelled {
		list = append(list, at)
	}
	return list
}

// expired maps the error of a watch that must begin with a list.
func expired(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return errExpired
	}
	return err
}
