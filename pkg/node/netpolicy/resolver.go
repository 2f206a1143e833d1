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
	// After work of a duration t the Resolver pauses for rest times t, and at most for restMost, because new pods wait for
	// their rules.
	rest     = 3
	restMost = 2 * time.Second
	// mostWaiting limits the requests of a node. A new one ends the oldest, of a connection that may be lost.
	mostWaiting = 2
	// reportEvery is how often an event says that the policies of a namespace are over a limit.
	reportEvery = 30 * time.Minute
	// maxAnswers limits the answers that are being written, in bytes. One answer takes less (limits.node).
	maxAnswers = 64 << 20
)

// Resolver makes the rules of nodes. It implements run.Component and Source.
type Resolver struct {
	client client.Interface
	events *events.Recorder
	log    *slog.Logger
	limits limits
	guard  run.Guard
	// Ready is closed when the policies that existed when Run was called are resolved.
	run.Readiness
	first  chan struct{}       // closed when there is a policy for the first time
	wake   chan struct{}       // capacity 1: something changed
	turn   chan struct{}       // capacity 1: held while the rules of a node are made
	spent  atomic.Int64        // nanoseconds, on rules of nodes
	budget *semaphore.Weighted // of maxAnswers

	mu       sync.Mutex
	cluster  cluster
	known    bool                  // all policies are known and, once there is one, all pods
	seen     bool                  // first is closed
	made     *compiled             // the last one; nil if there is no policy
	version  uint64                // of made; 0: none yet
	changed  chan struct{}         // closed when version changes
	waiting  map[string][]*request // by node, the oldest first
	reported map[string]time.Time  // when each namespace was last reported to be over a limit
}

// request is one of a node that waits for rules.
type request struct{ end context.CancelCauseFunc }

var errReplaced = errors.New("the node asked again")

var (
	_ run.Component = (*Resolver)(nil)
	_ Source        = (*Resolver)(nil)
)

// NewResolver returns a Resolver, which reads pods, namespaces and policies as the client's user. Log is slog.Default()
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

// Run implements run.Component. Pods are followed once there is a policy.
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

// loop resolves the policies after changes.
func (r *Resolver) loop(ctx context.Context) {
	for {
		began := time.Now()
		r.mu.Lock()
		c := r.cluster.clone()
		r.mu.Unlock()
		var made *compiled
		if len(c.policies) > 0 {
			made = compile(c, r.limits)
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

// publish wakes those who wait for rules.
func (r *Resolver) publish(made *compiled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = made
	r.version++
	close(r.changed)
	r.changed = make(chan struct{})
}

// report says in an event of their policies which namespaces are over a limit.
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

// unreported returns one excess of each namespace that was not reported lately, and records it as reported.
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
