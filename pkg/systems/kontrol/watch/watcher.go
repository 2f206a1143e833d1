package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
)

// A failed watch is retried after retryFirst, growing to retryMost.
const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 30 * time.Second
)

// errExpired means that the watch cannot resume without a list.
var errExpired = errors.New("the watch has expired")

// watcher follows the objects of one kind on one cluster.
type watcher struct {
	hub    *Hub
	kind   kind
	ended  context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	// reached and doubted are used only by run. doubted means that the last attempt failed as if the cluster did
	// not answer.
	reached position
	doubted bool

	mu              sync.Mutex
	known           bool
	reason, error   string
	items           map[types.NamespacedName]*item
	lost            map[types.NamespacedName]bool // existing objects that lost their label
	wanted, present int                           // pairs, existing objects
	decoded         int                           // objects held decoded
	unwanted        int                           // bytes held for objects that no Resource wants
}

func newWatcher(h *Hub, k kind) *watcher {
	ended, cancel := context.WithCancel(context.Background())
	return &watcher{
		hub:    h,
		kind:   k,
		ended:  ended,
		cancel: cancel,
		wake:   make(chan struct{}, 1),
		items:  map[types.NamespacedName]*item{},
		lost:   map[types.NamespacedName]bool{},
	}
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run watches until the last pair is dropped or ctx ends.
func (w *watcher) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.cancel)
	defer stop()
	defer w.cancel()
	again := backoff.Backoff{First: retryFirst, Most: retryMost, Jitter: true}
	for w.ended.Err() == nil {
		began := time.Now()
		err := w.once()
		if w.ended.Err() != nil {
			return
		}
		if useless(err) {
			w.reached = position{}
		}
		again.ResetAfter(began)
		if !errors.Is(err, errExpired) {
			w.failed(err)
		}
		timer := time.NewTimer(again.Next())
		select {
		case <-w.ended.Done():
		case <-w.wake:
			again.Reset()
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (w *watcher) once() error {
	t := w.hub.pool.Get(w.kind.cluster)
	if t == nil || t.Client() == nil {
		return ErrUnreachable
	}
	c := t.Client()
	ctx, cancel := context.WithCancel(w.ended)
	defer cancel()
	go func() { // cancel ctx when the connection ends
		select {
		case <-t.Done():
		case <-ctx.Done():
		}
		cancel()
	}()
	if _, err := c.RESTMapper().RESTMapping(w.kind.GroupKind(), w.kind.Version); err != nil {
		return err
	}
	g := newGuards(ctx, w, c)
	defer g.end()
	for {
		if err := w.next(ctx, c, g); err != nil {
			return err
		}
	}
}

// failed records why the objects cannot be watched. If the cluster does not answer, the known objects remain
// valid: the Cluster's condition reports the outage.
func (w *watcher) failed(err error) {
	reason, message := "WatchFailed", err.Error()
	switch {
	case errors.Is(err, ErrUnreachable):
		return
	case target.Lost(err) && !w.doubted: // the probe decides whether it is an outage
		w.doubted = true
		if t := w.hub.pool.Get(w.kind.cluster); t != nil {
			t.Probe()
		}
		return
	case meta.IsNoMatchError(err):
		reason, message = kontrol.ReasonNoKind, fmt.Sprintf("the cluster has no kind %s in %s yet: apply its "+
			"CustomResourceDefinition", w.kind.Kind, w.kind.GroupVersion())
	case apierrors.IsForbidden(err):
		reason, message = "Forbidden", "the cluster's user may not list and watch it: "+err.Error()
	}
	w.mu.Lock()
	same := w.reason == reason
	w.reason, w.error = reason, bounded.Text(message, kontrol.MaxError)
	w.mu.Unlock()
	if !same {
		w.all()
	}
}
