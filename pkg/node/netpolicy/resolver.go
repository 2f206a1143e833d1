package netpolicy

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
)

const (
	// After working for a time t the Resolver pauses for rest*t, but at most restMost, because new pods wait for
	// their rules.
	rest     = 3
	restMost = 2 * time.Second
	// mostWaiting limits the waiting requests of a node. A new request ends the oldest, whose connection may be
	// dead.
	mostWaiting = 2
	// reportEvery is the interval of events about a namespace over a limit.
	reportEvery = 30 * time.Minute
	// maxAnswers limits the total size of the answers being written, in bytes. A single answer is smaller
	// (limits.node).
	maxAnswers = 64 << 20
)

// Resolver computes the rules of all nodes. It implements run.Component and Source.
type Resolver struct {
	client client.Interface
	events *events.Recorder
	log    *slog.Logger
	limits limits
	guard  run.Guard
	// Ready is closed once the policies that existed when Run was called are resolved.
	run.Readiness
	first  chan struct{}       // closed when the first policy appears
	wake   chan struct{}       // capacity 1: something changed
	turn   chan struct{}       // capacity 1: held while the rules of a node are computed
	spent  atomic.Int64        // nanoseconds spent on the rules of nodes since the last pause
	budget *semaphore.Weighted // maxAnswers bytes

	mu       sync.Mutex
	cluster  cluster
	known    bool                  // all policies are known and, if there are any, all pods
	seen     bool                  // first is closed
	made     *compiled             // the last result; nil without policies
	version  uint64                // counts the values of made; 0 before the first
	changed  chan struct{}         // closed when version changes
	waiting  map[string][]*request // by node, oldest first
	reported map[string]time.Time  // time of the last report, by namespace
}

type request struct{ end context.CancelCauseFunc }

var errReplaced = errors.New("the node asked again")

var (
	_ run.Component = (*Resolver)(nil)
	_ Source        = (*Resolver)(nil)
)

// NewResolver returns a Resolver that reads pods, namespaces and policies through the client. Log is slog.Default()
// if nil.
func NewResolver(c client.Interface, log *slog.Logger) *Resolver {
	if log == nil {
		log = slog.Default()
	}
	r := &Resolver{
		client: c, log: log, limits: usual, first: make(chan struct{}),
		changed: make(chan struct{}),
		wake:    make(chan struct{}, 1), turn: make(chan struct{}, 1), budget: semaphore.NewWeighted(maxAnswers),
		waiting: map[string][]*request{}, reported: map[string]time.Time{},
		cluster: cluster{
			policies:   map[types.NamespacedName]*networkingv1.NetworkPolicy{},
			namespaces: map[string]labels.Set{},
			pods:       map[string]map[string]*pod{},
		},
	}
	r.guard = run.Guard{Log: log, Component: r.Name()}
	r.events = events.New(c, r.Name(), "", log)
	return r
}

// Name implements run.Component.
func (r *Resolver) Name() string { return "network-policies" }

// Run implements run.Component. It starts to watch pods only when the first policy appears.
func (r *Resolver) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { r.guard.Loop(ctx, "events", r.events.Run) })
	follow := func(object ctrl.Object, h toolscache.ResourceEventHandler) (func(), error) {
		end, err := client.Follow(ctx, r.client.Cache(), object, h)
		if err != nil && ctx.Err() != nil {
			return func() {}, nil //nolint:nilerr // caused by the end of ctx
		}
		return end, err
	}
	end, err := follow(&networkingv1.NetworkPolicy{}, handler(r, r.setPolicy))
	if err != nil || ctx.Err() != nil {
		return err
	}
	defer end()
	select {
	case <-r.first:
	default:
		r.publish(nil)
		r.SetReady()
		select {
		case <-r.first:
		case <-ctx.Done():
			return nil
		}
	}
	for _, what := range []struct {
		object  ctrl.Object
		handler toolscache.ResourceEventHandler
	}{{&corev1.Namespace{}, handler(r, r.setNamespace)}, {&corev1.Pod{}, handler(r, r.setPod)}} {
		end, err := follow(what.object, what.handler)
		if err != nil || ctx.Err() != nil {
			return err
		}
		defer end()
	}
	r.mu.Lock()
	r.known = true
	r.mu.Unlock()
	r.guard.Loop(ctx, "resolve", r.loop)
	return nil
}

func (r *Resolver) loop(ctx context.Context) {
	for {
		began := time.Now()
		r.mu.Lock()
		c, before := r.cluster.clone(), r.made
		r.mu.Unlock()
		var made *compiled
		if len(c.policies) > 0 {
			made = compile(c, r.limits, before)
			r.report(made.over)
		}
		r.publish(made)
		select {
		case <-r.Ready():
		default:
			r.SetReady()
		}
		pause := time.NewTimer(min(rest*(time.Since(began)+time.Duration(r.spent.Swap(0))), restMost))
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
	}
}

// publish sets the current result and wakes the waiting requests.
func (r *Resolver) publish(made *compiled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = made
	r.version++
	close(r.changed)
	r.changed = make(chan struct{})
}

// report logs the namespaces that are over a limit and records events on their policies.
func (r *Resolver) report(over []excess) {
	for _, o := range r.unreported(over) {
		namespace := o.policy.Namespace
		r.log.Warn("the network policies of a namespace are too large, they allow nothing", "namespace", namespace, "policy",
			o.policy.Name, "reason", o.why)
		r.events.Event(o.policy, corev1.EventTypeWarning, "PoliciesTooLarge",
			"The policies of namespace %s allow nothing, and pods that they select are isolated, because %s. "+
				"Write fewer rules with fewer different selectors: by one label that the peers have in common, or by an ipBlock.",
			namespace, o.why)
	}
}

// unreported returns one excess per namespace that was not reported within reportEvery, and marks it as reported.
func (r *Resolver) unreported(over []excess) (news []excess) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.reported, func(_ string, at time.Time) bool { return time.Since(at) >= reportEvery })
	for _, o := range over {
		if _, known := r.reported[o.policy.Namespace]; !known {
			r.reported[o.policy.Namespace] = time.Now()
			news = append(news, o)
		}
	}
	return news
}
