package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	cc "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
)

// A crashed reconciler is restarted with back-off from first to most. A failed call is retried with back-off from
// retryFirst to retryMost.
const (
	crashFirst = time.Second
	crashMost  = time.Minute
	retryFirst = 5 * time.Millisecond
	retryMost  = time.Minute
)

// Config configures Run.
type Config struct {
	// ClientFor returns the client for an identity, such as "system:serviceaccount:kube-system:replicaset-controller".
	ClientFor func(identity string) cc.Interface
	Log       *slog.Logger
	// Kinds are the kinds of the API server. Reconcilers wait for missing kinds. Nil means that it has all.
	Kinds Kinds
	// Monitor may be nil.
	Monitor *Monitor
	// Now is the reconcilers' clock; nil means time.Now.
	Now func() time.Time
}

// Run runs the reconcilers until ctx ends, isolated from each other. It calls ready once all have synced. It returns
// an error immediately if a declaration is invalid.
func Run(ctx context.Context, cfg Config, list []*Reconciler, ready func()) error {
	if cfg.Monitor == nil {
		cfg.Monitor = NewMonitor(nil)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	var wg, synced sync.WaitGroup
	defer wg.Wait()
	lives := make([]*life, 0, len(list))
	for _, r := range list {
		c := cfg.ClientFor(r.Identity())
		d, err := declare(r, c.Scheme())
		if err != nil {
			return err
		}
		lives = append(lives, &life{
			r:        r,
			client:   c,
			kinds:    cfg.Kinds,
			declared: d,
			log:      cfg.Log.With("reconciler", r.Name),
			now:      cfg.Now,
		})
	}
	for _, l := range lives {
		l.observer = cfg.Monitor.observe(l)
		synced.Add(1)
		var once sync.Once
		wg.Go(func() { l.supervise(ctx, func() { once.Do(synced.Done) }) })
	}
	all := make(chan struct{})
	wg.Go(func() { synced.Wait(); close(all) })
	select {
	case <-all:
		ready()
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// life is one reconciler over all its restarts.
type life struct {
	r        *Reconciler
	client   cc.Interface
	kinds    Kinds
	declared *declared
	observer *observer
	log      *slog.Logger
	now      func() time.Time
}

// supervise restarts the reconciler until ctx ends. It calls synced at the latest before it returns.
func (l *life) supervise(ctx context.Context, synced func()) {
	defer synced()
	if !l.awaitKinds(ctx, synced) {
		return
	}
	if l.r.When != nil {
		// The first object may never exist while the process runs.
		l.observer.synced.Store(true)
		synced()
		if !l.awaitFirst(ctx) {
			return
		}
	}
	again := backoff.Backoff{First: crashFirst, Most: crashMost}
	for {
		began := time.Now()
		err := l.once(ctx, synced)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errMoreKinds) {
			l.log.Info("reconciler restarts: the API server has a kind that it did not have before")
			continue
		}
		again.ResetAfter(began)
		l.observer.crashed(err)
		pause := again.Next()
		l.log.Error("reconciler crashed, restarting", "after", pause, "error", err)
		if !backoff.Sleep(ctx, pause) {
			return
		}
	}
}

// once runs the reconciler until ctx ends or it crashes, and waits for its goroutines.
func (l *life) once(parent context.Context, synced func()) (err error) {
	ctx, cancel := context.WithCancelCause(parent)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)

	var cached client.Reader = l.client.Cache()
	_, absent, _ := l.missing()
	if len(absent) > 0 {
		cached = without{cached, l.declared, absent}
		wg.Go(func() { l.awaitMore(ctx, len(absent), cancel) })
	}
	ix, err := index(ctx, l.client, l.r.Indexes, absent)
	if err != nil {
		return err
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[Request](retryFirst, retryMost)
	q := newQueue(limiter, l.observer.handles)
	recorder := events.New(l.client, l.r.Name+"-controller", "", l.log)
	l.observer.starts(q, recorder)
	wg.Go(func() { recorder.Run(ctx) })
	r := reader{cached, l.declared}
	env := Env{
		Client: guard{l.client, l.declared, cached}, Cache: r, Events: recorder, Log: l.log, Now: l.now,
		indexes: ix, queue: q.AddAfter, begin: func(f func(context.Context)) { wg.Go(func() { f(ctx) }) },
	}
	no := new(bool)
	yes := true
	c, err := controller.NewTypedUnmanaged(l.r.Name, controller.TypedOptions[Request]{
		SkipNameValidation:      &yes,
		MaxConcurrentReconciles: max(l.r.Workers, 1),
		RateLimiter:             limiter,
		NewQueue: func(string, workqueue.TypedRateLimiter[Request]) workqueue.TypedRateLimitingInterface[Request] {
			return q
		},
		Reconciler:       reconcile.TypedFunc[Request](l.observed(l.quietly(journaled(r, time.Now, l.r.New(env))))),
		Logger:           logr.Discard(),
		UsePriorityQueue: no,
	})
	if err != nil {
		return err
	}
	sources := l.sources(ctx, env, q, absent, cancel, &wg)
	for _, s := range sources {
		if err := c.Watch(s); err != nil {
			return err
		}
	}
	for _, o := range l.r.Reads {
		if _, err := l.client.Cache().GetInformer(ctx, o); err != nil {
			return fmt.Errorf("informer of %T: %w", o, err)
		}
	}
	wg.Go(func() {
		if awaitSources(ctx, sources) {
			l.observer.synced.Store(true)
			synced()
		}
	})
	if err := c.Start(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// sources starts the sources of the reconciler's watches, except for absent kinds.
func (l *life) sources(ctx context.Context, env Env, q *queue, absent map[schema.GroupKind]bool,
	crash context.CancelCauseFunc, wg *sync.WaitGroup) []*source {
	sourceOf := func(w Watch) *source {
		return &source{
			watch: w, env: env, cache: l.client.Cache(), crash: crash, failed: make(chan error, 1),
			synced: make(chan struct{}), bursts: map[string]*burst{},
		}
	}
	list := make([]*source, 0, len(l.r.Watches))
	for _, w := range l.r.Watches {
		if gk, err := l.declared.kind(w.Object); err == nil && absent[gk] {
			continue
		}
		s := sourceOf(w)
		list = append(list, s)
		wg.Go(func() { s.run(ctx, q, wg) })
	}
	if l.r.Every != nil {
		e := &every{
			Every:   l.r.Every,
			env:     env,
			source:  sourceOf,
			queue:   q,
			log:     l.log,
			wg:      wg,
			running: map[Kind]context.CancelFunc{},
		}
		list = append(list, e.update(ctx)...)
		wg.Go(func() { e.follow(ctx) })
	}
	return list
}

// awaitSources waits until all sources have synced. It returns false if ctx ends first.
func awaitSources(ctx context.Context, sources []*source) bool {
	for _, s := range sources {
		select {
		case <-s.synced:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (l *life) observed(f Func) Func {
	return func(ctx context.Context, req Request) (res Result, err error) {
		end := l.observer.begin(req)
		panicked := true
		defer func() { end(res, err, panicked) }()
		res, err = f(ctx, req)
		panicked = false
		return res, err
	}
}

// quietly turns conflicts and similar errors into retries, and logs other errors once.
func (l *life) quietly(f Func) Func {
	return func(ctx context.Context, req Request) (Result, error) {
		res, err := f(ctx, req)
		if err == nil || ctx.Err() != nil {
			return res, nil
		}
		level := slog.LevelWarn
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) ||
			Terminating(err) {
			level = slog.LevelDebug
		}
		l.log.Log(ctx, level, "reconcile failed, retrying", "object", req.String(), "error", err)
		return Result{}, err
	}
}

// source feeds one watch's events to the queue, and removes its handler when it ends.
type source struct {
	watch  Watch
	env    Env
	cache  ctrlcache.Cache
	crash  context.CancelCauseFunc
	failed chan error    // at most one
	synced chan struct{} // closed once the initial list is queued

	mu     sync.Mutex
	bursts map[string]*burst // by name; nil once the source has ended
}

// run adds the handler that feeds the queue, and returns once the initial list is queued. When ctx ends, it removes
// the handler; wg waits for that. run does not wait for Start: a controller that is stopped while it starts its
// sources may start the rest after all waiters have returned.
func (s *source) run(ctx context.Context, q workqueue.TypedRateLimitingInterface[Request], wg *sync.WaitGroup) {
	inf, err := s.cache.GetInformer(ctx, s.watch.Object)
	if err != nil {
		s.failed <- fmt.Errorf("informer of %T: %w", s.watch.Object, err)
		return
	}
	reg, err := inf.AddEventHandler(handler{ctx, s, q})
	if err != nil {
		s.failed <- fmt.Errorf("informer of %T: %w", s.watch.Object, err)
		return
	}
	// With over a hundred sources, a goroutine for each would be expensive.
	wg.Add(1)
	context.AfterFunc(ctx, func() {
		defer wg.Done()
		_ = inf.RemoveEventHandler(reg) // a stopped informer has no handlers
		s.endBursts()
	})
	select {
	case <-reg.HasSyncedChecker().Done():
		close(s.synced)
	case <-ctx.Done():
	}
}

// String names the watch. Without it, controller-runtime's errors would print the source while it is in use.
func (s *source) String() string { return fmt.Sprintf("watch of %T", s.watch.Object) }

// Start implements controller-runtime's source.TypedSource; run is started separately.
func (s *source) Start(context.Context, workqueue.TypedRateLimitingInterface[Request]) error {
	return nil
}

// WaitForSync implements controller-runtime's source.TypedSyncingSource.
func (s *source) WaitForSync(ctx context.Context) error {
	select {
	case <-s.synced:
		return nil
	case err := <-s.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type handler struct {
	ctx context.Context
	s   *source
	q   workqueue.TypedRateLimitingInterface[Request]
}

// safely runs f. A panic crashes the reconciler, not the process.
func (h handler) safely(f func()) {
	defer func() {
		if p := recover(); p != nil {
			h.s.crash(fmt.Errorf("panic in the watch of %T: %v\n%s", h.s.watch.Object, p, debug.Stack()))
		}
	}()
	f()
}

func (h handler) mapped(o client.Object) {
	if h.s.watch.Map == nil {
		h.q.Add(Request{NamespacedName: client.ObjectKeyFromObject(o)})
		return
	}
	if h.s.watch.Batch != nil {
		h.s.batch(h.s.watch.Batch(o), o, func(o client.Object) {
			h.safely(func() { h.queue(h.s.watch.Map(h.ctx, h.s.env, o)) })
		})
		return
	}
	h.queue(h.s.watch.Map(h.ctx, h.s.env, o))
}

func (h handler) queue(list []Request) {
	for _, r := range list {
		h.q.Add(r)
	}
}

func (h handler) OnAdd(o any, _ bool) {
	is, ok := o.(client.Object)
	if !ok {
		return
	}
	h.safely(func() {
		if h.s.watch.Event != nil {
			h.queue(h.s.watch.Event(h.ctx, h.s.env, nil, is))
			return
		}
		h.mapped(is)
	})
}

func (h handler) OnDelete(o any) {
	if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	was, ok := o.(client.Object)
	if !ok {
		return
	}
	h.safely(func() {
		if h.s.watch.Event != nil {
			h.queue(h.s.watch.Event(h.ctx, h.s.env, was, nil))
			return
		}
		h.mapped(was)
	})
}

func (h handler) OnUpdate(a, b any) {
	was, ok1 := a.(client.Object)
	is, ok2 := b.(client.Object)
	if !ok1 || !ok2 {
		return
	}
	h.safely(func() {
		switch w := h.s.watch; {
		case w.Event != nil:
			h.queue(w.Event(h.ctx, h.s.env, was, is))
		case w.Changed != nil && !w.Changed(was, is):
		case w.Map != nil:
			h.mapped(was)
			h.mapped(is)
		default:
			h.mapped(is)
		}
	})
}
