package netpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/events"
	"github.com/coracle-dev/coracle/pkg/run"
)

const (
	// rest is how much longer than it takes to resolve all policies and make the rules of all nodes that ask the Resolver waits before it does so again:
	// changes without end cost a quarter of a processor. It waits restMost at most, because new pods wait for their rules.
	rest     = 3
	restMost = 2 * time.Second
	// mostWaiting limits the requests of a node. A new one ends the oldest, of a connection that may be lost.
	mostWaiting = 2
	// tellEvery is how often a namespace is told that its policies are over a limit.
	tellEvery = 30 * time.Minute
)

// Resolver makes the rules of nodes. It implements run.Component and Source.
type Resolver struct {
	client client.Interface
	events *events.Recorder
	log    *slog.Logger
	limits limits
	guard  run.Guard
	ready  chan struct{}
	first  chan struct{} // closed when there is a policy for the first time
	wake   chan struct{} // capacity 1: something changed
	turn   chan struct{} // capacity 1: held while the rules of a node are made
	spent  atomic.Int64  // nanoseconds, on rules of nodes

	mu      sync.Mutex
	cluster cluster
	known   bool                  // all policies are known and, once there is one, all pods
	seen    bool                  // first is closed
	made    *compiled             // the last one; nil if there is no policy
	version uint64                // of made; 0: none yet
	changed chan struct{}         // closed when version changes
	waiting map[string][]*request // by node, the oldest first
	told    map[string]time.Time  // when each namespace was told that it is over a limit
}

// request is one of a node that waits for rules.
type request struct{ end context.CancelCauseFunc }

var errReplaced = errors.New("the node asked again")

var (
	_ run.Component = (*Resolver)(nil)
	_ Source        = (*Resolver)(nil)
)

// NewResolver returns a Resolver, which reads pods, namespaces and policies as the client's user. Log is slog.Default() if nil.
func NewResolver(c client.Interface, log *slog.Logger) *Resolver {
	if log == nil {
		log = slog.Default()
	}
	r := &Resolver{client: c, log: log, limits: usual, ready: make(chan struct{}), first: make(chan struct{}), wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), changed: make(chan struct{}),
		waiting: map[string][]*request{}, told: map[string]time.Time{}, cluster: cluster{policies: map[types.NamespacedName]*networkingv1.NetworkPolicy{}, namespaces: map[string]labels.Set{}, pods: map[string]map[string]*pod{}}}
	r.guard = run.Guard{Log: log, Component: r.Name()}
	r.events = events.New(c, r.Name(), "", log)
	return r
}

// Name implements run.Component.
func (r *Resolver) Name() string { return "network-policies" }

// Ready is closed when the policies that existed when Run was called are resolved.
func (r *Resolver) Ready() <-chan struct{} { return r.ready }

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
		close(r.ready)
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
			r.tell(made.over)
		}
		r.publish(made)
		select {
		case <-r.ready:
		default:
			close(r.ready)
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

// Next implements Source.
func (r *Resolver) Next(ctx context.Context, node, after string) (*Rules, error) {
	for {
		rules, changed, err := r.rules(ctx, node)
		if err != nil {
			return nil, err
		}
		if rules != nil && rules.Version != after {
			return rules, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// rules makes the rules of a node, or nil while they are not known, one node at a time. The channel is closed when they may be others.
func (r *Resolver) rules(ctx context.Context, node string) (*Rules, <-chan struct{}, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	began := time.Now()
	defer func() {
		r.spent.Add(int64(time.Since(began)))
		<-r.turn
	}()
	r.mu.Lock()
	known, made, changed := r.version > 0 && (r.known || !r.seen), r.made, r.changed
	r.mu.Unlock()
	switch {
	case !known:
		return nil, changed, nil
	case made == nil:
		return (&Rules{}).seal(), changed, nil
	}
	rules, over := made.node(node)
	r.tell(over)
	return rules, changed, nil
}

// Rules returns what Next does, as JSON, and its version. Of a node's requests that wait it ends the oldest when they are too many.
func (r *Resolver) Rules(ctx context.Context, node, after string) (data []byte, version string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.enter(node, &request{cancel})()
	rules, err := r.Next(ctx, node, after)
	if err != nil {
		if errors.Is(context.Cause(ctx), errReplaced) {
			err = apierrors.NewTooManyRequests("this node waits for its network policy rules in newer requests", 1)
		}
		return nil, "", err
	}
	data, err = json.Marshal(rules)
	return data, rules.Version, err
}

// enter adds a request, and returns how to remove it.
func (r *Resolver) enter(node string, one *request) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(r.waiting[node], one)
	if len(all) > mostWaiting {
		all[0].end(errReplaced)
		all = slices.Delete(all, 0, 1)
	}
	r.waiting[node] = all
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		all := slices.DeleteFunc(r.waiting[node], func(o *request) bool { return o == one })
		if r.waiting[node] = all; len(all) == 0 {
			delete(r.waiting, node)
		}
	}
}

// tell says in an event of their policies which namespaces are over a limit.
func (r *Resolver) tell(over []excess) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for namespace, at := range r.told {
		if time.Since(at) >= tellEvery {
			delete(r.told, namespace)
		}
	}
	for _, o := range over {
		namespace := o.policy.Namespace
		if _, told := r.told[namespace]; told {
			continue
		}
		r.told[namespace] = time.Now()
		r.log.Warn("the network policies of a namespace are too large, they allow nothing", "namespace", namespace, "policy", o.policy.Name, "reason", o.why)
		r.events.Event(o.policy, corev1.EventTypeWarning, "PoliciesTooLarge", "The policies of namespace %s allow nothing, and pods that they select are isolated, because %s. "+
			"Write fewer rules with fewer different selectors: by one label that the peers have in common, or by an ipBlock.", namespace, o.why)
	}
}

// mark has the policies resolved again. The caller holds the lock.
func (r *Resolver) mark() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Resolver) setPolicy(p *networkingv1.NetworkPolicy, there bool) {
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	r.mu.Lock()
	defer r.mu.Unlock()
	if there {
		r.cluster.policies[name] = p
	} else {
		delete(r.cluster.policies, name)
	}
	if there && !r.seen {
		r.seen = true
		close(r.first)
	}
	r.mark()
}

func (r *Resolver) setNamespace(n *corev1.Namespace, there bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.cluster.namespaces[n.Name]
	switch {
	case !there:
		delete(r.cluster.namespaces, n.Name)
	case known && maps.Equal(was, n.Labels):
		return
	default:
		r.cluster.namespaces[n.Name] = n.Labels
	}
	r.mark()
}

func (r *Resolver) setPod(p *corev1.Pod, there bool) {
	var is *pod
	if there {
		is = podOf(p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.cluster.pods[p.Namespace][p.Name]
	if was == nil && is == nil || was != nil && is != nil && was.equal(is) {
		return
	}
	if was != nil {
		delete(r.cluster.pods[p.Namespace], p.Name)
		if len(r.cluster.pods[p.Namespace]) == 0 {
			delete(r.cluster.pods, p.Namespace)
		}
	}
	if is != nil {
		if r.cluster.pods[p.Namespace] == nil {
			r.cluster.pods[p.Namespace] = map[string]*pod{}
		}
		r.cluster.pods[p.Namespace][p.Name] = is
	}
	r.mark()
}

// podOf returns what matters of a pod, or nil if nothing does: it has no node, ended, or uses its node's network.
func podOf(p *corev1.Pod) *pod {
	if p.Spec.NodeName == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	out := &pod{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, uid: identity(p, mirror), node: p.Spec.NodeName, labels: p.Labels}
	if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && a.Is4() {
		out.address = a
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, port := range c.Ports {
				if port.Name != "" {
					out.ports = append(out.ports, namedPort{port.Name, protocolOf(port.Protocol), uint16(port.ContainerPort)})
				}
			}
		}
	}
	return out
}

// identity returns how a node and the servers know a pod: by its UID, but a static pod, which has another one in the API, by its name. What its mirror's
// annotation says is not used: whoever may create pods could name another pod's UID there.
func identity(p *corev1.Pod, static bool) types.UID {
	if static {
		return types.UID("static:" + p.Namespace + "/" + p.Name)
	}
	return p.UID
}

func (p *pod) equal(o *pod) bool {
	return p.uid == o.uid && p.node == o.node && p.address == o.address && maps.Equal(p.labels, o.labels) && slices.Equal(p.ports, o.ports)
}

// handler calls set for each object that is there or no longer.
func handler[T ctrl.Object](r *Resolver, set func(T, bool)) toolscache.ResourceEventHandler {
	call := func(o any, there bool) {
		if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = t.Obj
		}
		if object, ok := o.(T); ok {
			_ = r.guard.Do("event", func() { set(object, there) }, "object", object.GetNamespace()+"/"+object.GetName())
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { call(o, true) },
		UpdateFunc: func(_, o any) { call(o, true) },
		DeleteFunc: func(o any) { call(o, false) },
	}
}
