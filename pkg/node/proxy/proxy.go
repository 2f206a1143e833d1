// Package proxy implements services on a node: it translates Services and EndpointSlices into one nftables table and
// updates it incrementally.
//
// A verdict map leads from a frontend (address, protocol, port) to a chain, which picks a number in round robin and
// looks up the endpoint of (frontend, number) in one map for all services. Services with the same number of
// endpoints share chains, so a changed service changes a few map elements, however many services exist. Some
// backends have their own chain, such as those with session affinity (see apart).
//
// One service owns a frontend: the one with the cluster IP, else the node port, else the external address, and among
// equals the oldest. Services cannot claim the cluster's own addresses (see Guarded). For pool addresses one node
// answers ARP (see balance.go).
//
// Its invariant: state is exactly the content of the kernel's table. After an error the whole table is rewritten in
// one transaction. The table outlives the proxy, so that services keep working; Reset removes it.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/node/host/socket"
	"github.com/coracle-dev/coracle/pkg/node/proxy/announce"
)

var prefixSyntax = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

// Proxy implements run.Component.
type Proxy struct {
	Config
	kernel *kernel
	health *health
	arp    *announce.Announcer
	// held are the addresses for which this node answers ARP. moved is set if they changed since the last
	// announcement; arpError is the error of the last announcement.
	held     map[types.NamespacedName][]netip.Addr
	moved    bool
	arpError string
	events   *events.Recorder
	guard    run.Guard
	metrics  *metrics
	// Ready is closed once the kernel has all services that existed when Run was called.
	run.Readiness
	wake chan struct{} // capacity 1: there are changes to sync

	mu       sync.Mutex
	node     Node
	nodes    map[string]machine // by name
	ranges   map[string]*networkingv1.ServiceCIDR
	refresh  bool // the holders changed: announce all held addresses again
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice // by service, then by slice name
	dirty    map[types.NamespacedName]bool
	lost     bool   // another program removed the table
	received uint64 // number of received changes
	done     uint64 // number of changes that are in the kernel

	state  *state // only Run's goroutine uses it
	broken bool   // the kernel's table may differ from state
	// stale are the UDP frontends whose conntrack entries to clean up after the next successful sync.
	stale   map[Frontend]bool
	plan    func(Node, *corev1.Service, []*discoveryv1.EndpointSlice, *servicePlan) *servicePlan
	guarded *Guarded // the value from which the kernel's ranges were computed
	routed  bool     // the routes match the kernel's ranges
	// refused are the reasons, already reported, why ranges are not served.
	refused map[netip.Prefix]string
	// complaints are the complaints already reported, by service.
	complaints map[types.NamespacedName][]string
	// rests are the times until which changes of services wait whose last plan was expensive.
	rests map[types.NamespacedName]time.Time
	// again are the times at which to plan services whose ports processes of this machine have.
	again map[types.NamespacedName]time.Time
}

var _ run.Component = (*Proxy)(nil)

// New returns a Proxy. It changes nothing on the node until Run is called.
func New(c Config) (*Proxy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Proxy{Config: c, wake: make(chan struct{}, 1),
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
		dirty:    map[types.NamespacedName]bool{}, state: newState(), broken: true, stale: map[Frontend]bool{},
		nodes: map[string]machine{}, ranges: map[string]*networkingv1.ServiceCIDR{},
		complaints: map[types.NamespacedName][]string{}, rests: map[types.NamespacedName]time.Time{},
		again: map[types.NamespacedName]time.Time{},
		held:  map[types.NamespacedName][]netip.Addr{}, plan: plan,
		events: events.New(c.Client, "coracle-proxy", c.NodeName, c.Logger)}
	p.guard = run.Guard{Log: c.Logger, Component: p.Name()}
	p.metrics = newMetrics(c.Metrics, p)
	p.node = Node{Name: c.NodeName, Local: c.Local, InUse: func(f Frontend) bool {
		return socket.InUse(f.Protocol, netip.AddrPortFrom(f.Addr, f.Port))
	}}
	for _, a := range append([]netip.Addr{c.NodeIP, netip.AddrFrom4([4]byte{127, 0, 0, 1})}, c.NodePortAddresses...) {
		p.node.Addresses = addresses(nil, append(texts(p.node.Addresses), a.String())...)
	}
	p.health = newHealth(c.Logger)
	p.arp = announce.New(c.NodeIP, c.Logger)
	return p, nil
}

func texts(all []netip.Addr) []string {
	out := make([]string, 0, len(all)+1)
	for _, a := range all {
		out = append(out, a.String())
	}
	return out
}

// Name implements run.Component.
func (p *Proxy) Name() string { return "proxy" }

// retryFirst and retryMost are the first and the longest back-off after a failed transaction.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 30 * time.Second
)

// Run implements run.Component.
func (p *Proxy) Run(ctx context.Context) (err error) {
	if p.kernel, err = newKernel(&p.Config); err != nil {
		return err
	}
	defer func() { _ = p.kernel.close() }()
	defer p.health.stop()
	defer func() { _ = p.arp.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { p.guard.Loop(ctx, "events", p.events.Run) })
	for _, what := range []struct {
		object  ctrl.Object
		handler toolscache.ResourceEventHandler
	}{
		{&corev1.Node{}, handler(&p.guard, p.setNode)},
		{&networkingv1.ServiceCIDR{}, handler(&p.guard, p.setRange)},
		{&corev1.Service{}, p.serviceHandler()},
		{&discoveryv1.EndpointSlice{}, p.sliceHandler()},
	} {
		end, err := client.Follow(ctx, p.Client.Cache(), what.object, what.handler)
		if ctx.Err() != nil {
			return nil // the error results from the cancelled context
		}
		if err != nil {
			return err
		}
		defer end()
	}
	retry := backoff.Backoff{First: retryFirst, Most: retryMost}
	timer := time.NewTimer(0)
	defer timer.Stop()
	first := true
	for {
		began := time.Now()
		err := p.syncGuarded()
		p.metrics.synced(began, err)
		timer.Stop()
		if at := p.next(); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
		switch {
		case err != nil && errors.Is(err, unix.EPERM):
			return fmt.Errorf("%w (coracle must run as root, with CAP_NET_ADMIN)", err)
		case err != nil:
			pause := retry.Next()
			p.Logger.Error("could not sync service rules, retrying", "after", pause, "error", err)
			timer.Reset(pause)
		default:
			retry.Reset()
			if first {
				p.SetReady()
				first = false
			}
		}
		select {
		case <-p.wake:
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// syncGuarded calls sync and recovers from a panic. After a panic the next sync rewrites everything.
func (p *Proxy) syncGuarded() (err error) {
	panicked := p.guard.Do("sync", func() { err = p.sync() })
	if panicked == nil {
		return err
	}
	p.state, p.broken = newState(), true
	p.mu.Lock()
	for name := range p.services {
		p.dirty[name] = true
	}
	p.mu.Unlock()
	fresh, err := newKernel(&p.Config) // the old one may hold an incomplete transaction
	if err != nil {
		return errors.Join(panicked, err)
	}
	_ = p.kernel.close()
	fresh.ranges = p.kernel.ranges
	p.kernel = fresh
	return panicked
}

// A service whose plan takes longer than expensive, one with many thousand endpoints, rests for restFactor times as
// long before its next one, at most restMost: anyone who may change its endpoints can cause a plan on each node. The
// plan is about a third of the work.
const (
	expensive  = 20 * time.Millisecond
	restFactor = 12
	restMost   = 5 * time.Second
	// freedAfter is when a service is planned again whose port a process of this machine has: no event says that the
	// process has ended.
	freedAfter = 3 * time.Second
)

type input struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

func (p *Proxy) plans(node Node, inputs map[types.NamespacedName]input) map[types.NamespacedName]*servicePlan {
	plans := make(map[types.NamespacedName]*servicePlan, len(inputs))
	for name, in := range inputs {
		// If the plan of a service panics, the service keeps its rules until it changes again.
		began := time.Now()
		_ = p.guard.Do("plan", func() {
			plans[name] = p.plan(node, in.service, in.slices, p.state.plans[name])
		}, "service", name)
		p.rest(name, time.Since(began))
		delete(p.again, name)
		if now := plans[name]; now != nil && now.inUse {
			p.again[name] = time.Now().Add(freedAfter)
		}
	}
	return plans
}

func (p *Proxy) rest(name types.NamespacedName, planned time.Duration) {
	if delete(p.rests, name); planned > expensive {
		p.rests[name] = time.Now().Add(min(restFactor*planned, restMost))
	}
}

// next returns when the first service may or shall be planned again without another change, or zero.
func (p *Proxy) next() (first time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sooner := func(at time.Time) {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	for name, until := range p.rests {
		if p.dirty[name] {
			sooner(until)
		}
	}
	for name, at := range p.again {
		if until := p.rests[name]; until.After(at) {
			at = until
		}
		sooner(at)
	}
	return first
}

func (p *Proxy) sync() error {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = map[types.NamespacedName]bool{}
	received := p.received
	now := time.Now()
	for name, at := range p.again {
		if !now.Before(at) {
			dirty[name] = true
		}
	}
	inputs := make(map[types.NamespacedName]input, len(dirty))
	for name := range dirty {
		if now.Before(p.rests[name]) {
			p.dirty[name] = true // until Run's timer
			continue
		}
		in := input{service: p.services[name]}
		for _, s := range p.slices[name] {
			in.slices = append(in.slices, s)
		}
		inputs[name] = in
	}
	if p.node.Guarded == nil {
		p.node.Guarded = p.newGuarded()
	}
	node, refresh := p.node, p.refresh
	p.broken = p.broken || p.lost
	p.refresh, p.lost = false, false
	p.mu.Unlock()

	err := p.serveRanges(node.Guarded)
	plans := p.plans(node, inputs)
	d := p.state.apply(plans)
	maps.Copy(p.stale, d.stale)
	p.health.set(plans)
	for name, now := range plans {
		p.moved = p.hold(name, now.held) || p.moved
	}
	for _, name := range d.touched {
		p.complain(name, p.state.complaints(name))
	}
	switch {
	case err != nil:
	case p.broken:
		err = p.kernel.replace(p.state.everything())
	case !d.empty():
		err = p.kernel.update(d)
	}
	if err == nil && !p.routed {
		err = p.route(p.kernel.ranges)
		p.routed = err == nil
	}
	p.broken = err != nil
	if err != nil {
		return err
	}
	if p.moved || refresh || p.arpError != "" { // only now, since announcing attracts traffic that needs the rules
		p.moved = false
		p.announce(refresh)
	}
	defer func() {
		p.mu.Lock()
		if len(inputs) == len(dirty) {
			p.done = received
		}
		p.mu.Unlock()
	}()
	if len(p.stale) > 0 {
		// A failure needs no retry: the entries expire.
		if err := forget(p.state.flows(p.stale)); err != nil {
			p.Logger.Warn("could not remove stale UDP conntrack entries", "error", err)
		}
		clear(p.stale)
	}
	return nil
}

// Table returns the name of the nftables table.
func (p *Proxy) Table() string { return tableName(p.Prefix) }

// Rewrite makes Run write the table again after another program removed it.
func (p *Proxy) Rewrite(context.Context) error {
	p.mu.Lock()
	p.lost = true
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// Reset removes the table and the routes, including what a killed process left. It may be repeated.
func Reset(_ context.Context, c Config) error {
	if err := c.fill(); err != nil {
		return err
	}
	k, err := newKernel(&c)
	if err != nil {
		return err
	}
	return errors.Join(k.reset(), k.close(), c.removeRoutes(nil))
}

// Reset calls the function Reset with the proxy's configuration. Run must have returned.
func (p *Proxy) Reset(ctx context.Context) error { return Reset(ctx, p.Config) }
