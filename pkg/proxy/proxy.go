// Package proxy makes services work on a node: it turns Services and
// EndpointSlices into one nftables table, and changes only what changed.
//
// A connection to a frontend (address, protocol, port) finds its chain in a verdict
// map. Chains are shared by all services with as many endpoints; they look up the frontend's slot, take the
// next number in turn, and find the endpoint of (slot, number) in one map for all services. So a change of a
// service changes a few map elements, whatever the number of services.
//
// A frontend belongs to one service: whose cluster IP it is, then whose node port, then whose external address, of which the
// oldest service's counts. External addresses never cover the cluster's own (see Guarded); what is refused is said in
// an event on the service.
//
// It may import client, events and, beside agent/network alone, netlink and nftables. Its invariant:
// state holds exactly what the kernel's table holds; after an error the whole table is written anew, in one
// transaction. Stopping leaves the table in place, so services go on working; Reset removes it.
package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/events"
	"github.com/coracle-dev/coracle/pkg/run"
)

// Config of New and Reset. Reset needs Prefix only.
type Config struct {
	Client   client.Interface
	NodeName string
	// NodeIP is the node's IPv4 address: node ports are served on it, and services see clients from outside as it.
	NodeIP netip.Addr
	// NodePortAddresses are further addresses of the node for node ports, beside NodeIP and 127.0.0.1. The latter
	// reaches pods of this node and hostNetwork pods of it.
	NodePortAddresses []netip.Addr
	// ServiceCIDR and ClusterCIDR are the ranges of all cluster IPs and of all nodes' pods. If ClusterCIDR is
	// invalid, pods count as being outside of the cluster for externalTrafficPolicy Local.
	ServiceCIDR, ClusterCIDR netip.Prefix
	// Local services are answered by this node itself, at the address given, instead of by their endpoints. The
	// cluster's DNS is one.
	Local map[types.NamespacedName]netip.AddrPort
	// Ports are served by nodes themselves (the API, the agent, DNS): no service gets them on a node's address. SSH's, 22, is
	// always one.
	Ports []uint16
	// Metrics takes the proxy's metrics; nil for none.
	Metrics prometheus.Registerer
	Prefix  string       // begins the name of the nftables table; default "coracle"
	Logger  *slog.Logger // default slog.Default()
}

// Validate fills in defaults and says what is wrong.
func (c *Config) Validate() error {
	if err := c.fill(); err != nil {
		return err
	}
	switch {
	case c.Client == nil:
		return errors.New("proxy: no client given")
	case c.NodeName == "":
		return errors.New("proxy: no node name given")
	case !c.NodeIP.Is4() || c.NodeIP.IsLoopback() || c.NodeIP.IsUnspecified():
		return fmt.Errorf("proxy: node address %s must be an IPv4 address that pods can reach", c.NodeIP)
	case c.ServiceCIDR.IsValid() && !c.ServiceCIDR.Addr().Is4(), c.ClusterCIDR.IsValid() && !c.ClusterCIDR.Addr().Is4():
		return fmt.Errorf("proxy: service CIDR %s and cluster CIDR %s must be IPv4", c.ServiceCIDR, c.ClusterCIDR)
	}
	return nil
}

var prefixSyntax = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

func (c *Config) fill() error {
	if c.Prefix == "" {
		c.Prefix = "coracle"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if !prefixSyntax.MatchString(c.Prefix) {
		return fmt.Errorf("proxy: name prefix %q must match %s", c.Prefix, prefixSyntax)
	}
	return nil
}

// ClusterIPsMasquerade tells whether clients from outside of the cluster are hidden when they use a cluster IP.
func (c *Config) ClusterIPsMasquerade() bool {
	return c.ServiceCIDR.IsValid() && c.ClusterCIDR.IsValid()
}

// Proxy is the component "proxy".
type Proxy struct {
	Config
	kernel  *kernel
	health  *health
	events  *events.Recorder
	guard   run.Guard
	metrics *metrics
	ready   chan struct{}
	wake    chan struct{} // capacity 1: something is dirty

	mu       sync.Mutex
	node     Node
	nodes    map[string][]netip.Addr // of all nodes, by name
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice // by service, then by the slice's name
	dirty    map[types.NamespacedName]bool
	told     uint64 // changes heard of
	done     uint64 // of those, how many the kernel has

	state  *state // used by Run's goroutine alone
	broken bool   // the kernel may hold something else than state
	plan   func(Node, *corev1.Service, []*discoveryv1.EndpointSlice, *servicePlan) *servicePlan
	// complaints are those that were told, by service.
	complaints map[types.NamespacedName][]string
}

var _ run.Component = (*Proxy)(nil)

// New makes a proxy. It changes nothing before Run.
func New(c Config) (*Proxy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Proxy{Config: c, ready: make(chan struct{}), wake: make(chan struct{}, 1),
		services: map[types.NamespacedName]*corev1.Service{}, slices: map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
		dirty: map[types.NamespacedName]bool{}, state: newState(), broken: true, nodes: map[string][]netip.Addr{},
		complaints: map[types.NamespacedName][]string{}, plan: plan, events: events.New(c.Client, "coracle-proxy", c.NodeName, c.Logger)}
	p.guard = run.Guard{Log: c.Logger, Component: p.Name()}
	p.metrics = newMetrics(c.Metrics, p)
	p.node = Node{Name: c.NodeName, Local: c.Local}
	for _, a := range append([]netip.Addr{c.NodeIP, netip.AddrFrom4([4]byte{127, 0, 0, 1})}, c.NodePortAddresses...) {
		p.node.Addresses = addresses(nil, append(texts(p.node.Addresses), a.String())...)
	}
	p.health = newHealth(c.Logger)
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

// Ready is closed once the kernel has all services that existed when Run was called.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// retryFirst and retryMost bound how long Run waits after a failed transaction, before it writes everything anew.
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
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { p.guard.Loop(ctx, "events", p.events.Run) })
	if err := p.route(); err != nil {
		return err
	}
	for _, what := range []struct {
		object  ctrl.Object
		handler toolscache.ResourceEventHandler
	}{
		{&corev1.Node{}, handler(&p.guard, p.setNode)},
		{&corev1.Service{}, p.serviceHandler()},
		{&discoveryv1.EndpointSlice{}, p.sliceHandler()},
	} {
		informer, err := p.Client.Cache().GetInformer(ctx, what.object)
		if ctx.Err() != nil {
			return nil // what err says of it is not our failure
		}
		if err != nil {
			return fmt.Errorf("watch %T: %w", what.object, err)
		}
		registration, err := informer.AddEventHandler(what.handler)
		if err != nil {
			return fmt.Errorf("watch %T: %w", what.object, err)
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }()
		select {
		case <-registration.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil
		}
	}
	retry := retryFirst
	var again <-chan time.Time
	first := true
	for {
		began := time.Now()
		err := p.safely()
		p.metrics.synced(began, err)
		again = nil
		switch {
		case err != nil && errors.Is(err, unix.EPERM):
			return fmt.Errorf("%w (coracle must run as root, with CAP_NET_ADMIN)", err)
		case err != nil:
			p.Logger.Error("could not sync service rules, retrying", "after", retry, "error", err)
			timer := time.NewTimer(retry)
			defer timer.Stop()
			again, retry = timer.C, min(2*retry, retryMost)
		default:
			retry = retryFirst
			if first {
				close(p.ready)
				first = false
			}
		}
		select {
		case <-p.wake:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// safely is sync. If that panics, nothing is known of the state any more, and the next sync begins anew.
func (p *Proxy) safely() (err error) {
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
	fresh, err := newKernel(&p.Config) // the old one may hold half a transaction
	if err != nil {
		return errors.Join(panicked, err)
	}
	_ = p.kernel.close()
	p.kernel = fresh
	return panicked
}

// sync brings the kernel to the present services.
func (p *Proxy) sync() error {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = map[types.NamespacedName]bool{}
	told := p.told
	type input struct {
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
	}
	inputs := make(map[types.NamespacedName]input, len(dirty))
	for name := range dirty {
		in := input{service: p.services[name]}
		for _, s := range p.slices[name] {
			in.slices = append(in.slices, s)
		}
		inputs[name] = in
	}
	if p.node.Guarded == nil {
		p.node.Guarded = p.newGuarded()
	}
	node := p.node
	p.mu.Unlock()

	plans := make(map[types.NamespacedName]*servicePlan, len(inputs))
	for name, in := range inputs {
		// A service whose plan panics stays as it is until it changes again.
		_ = p.guard.Do("plan", func() { plans[name] = p.plan(node, in.service, in.slices, p.state.plans[name]) }, "service", name)
	}
	d := p.state.apply(plans)
	for name, now := range plans {
		p.health.set(name, now.healthPort, now.healthCount)
	}
	for _, name := range d.touched {
		p.complain(name, p.state.complaints(name))
	}
	var err error
	switch {
	case p.broken:
		err = p.kernel.replace(p.state.everything())
	case !d.empty():
		err = p.kernel.update(d)
	}
	p.broken = err != nil
	if err != nil {
		return err
	}
	defer func() {
		p.mu.Lock()
		p.done = told
		p.mu.Unlock()
	}()
	if len(d.stale) > 0 {
		// Not worth a new transaction if it fails: the entries expire.
		if err := forget(d.stale); err != nil {
			p.Logger.Warn("could not remove stale UDP conntrack entries", "error", err)
		}
	}
	return nil
}

func (p *Proxy) mark(name types.NamespacedName) {
	p.dirty[name] = true
	p.told++
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Proxy) serviceHandler() toolscache.ResourceEventHandler {
	set := func(s *corev1.Service, there bool) {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		p.mu.Lock()
		defer p.mu.Unlock()
		if there {
			p.services[name] = s
		} else {
			delete(p.services, name)
		}
		p.mark(name)
	}
	return handler(&p.guard, set)
}

func (p *Proxy) sliceHandler() toolscache.ResourceEventHandler {
	set := func(s *discoveryv1.EndpointSlice, there bool) {
		service := s.Labels[discoveryv1.LabelServiceName]
		p.mu.Lock()
		defer p.mu.Unlock()
		name := types.NamespacedName{Namespace: s.Namespace, Name: service}
		if name == apiService {
			defer p.guardAnew()
		}
		if there && service != "" && !ignored(s) {
			if p.slices[name] == nil {
				p.slices[name] = map[string]*discoveryv1.EndpointSlice{}
			}
			p.slices[name][s.Name] = s
			p.mark(name)
			return
		}
		if _, ok := p.slices[name][s.Name]; ok {
			delete(p.slices[name], s.Name)
			if len(p.slices[name]) == 0 {
				delete(p.slices, name)
			}
			p.mark(name)
		}
	}
	return handlerMoving(&p.guard, set, func(s *discoveryv1.EndpointSlice) string { return s.Labels[discoveryv1.LabelServiceName] })
}

// handler calls set for each event; a nil old state is of no interest.
func handler[T ctrl.Object](guard *run.Guard, set func(object T, there bool)) toolscache.ResourceEventHandler {
	return handlerMoving(guard, set, func(T) string { return "" })
}

// handlerMoving also removes an object from where it was when its group changes.
func handlerMoving[T ctrl.Object](guard *run.Guard, unguarded func(object T, there bool), group func(T) string) toolscache.ResourceEventHandler {
	set := func(object T, there bool) {
		_ = guard.Do("event", func() { unguarded(object, there) }, "object", ctrl.ObjectKeyFromObject(object))
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if object, ok := o.(T); ok {
				set(object, true)
			}
		},
		UpdateFunc: func(before, o any) {
			if old, ok := before.(T); ok {
				if object, ok := o.(T); ok && group(old) != group(object) {
					set(old, false)
				}
			}
			if object, ok := o.(T); ok {
				set(object, true)
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if object, ok := o.(T); ok {
				set(object, false)
			}
		},
	}
}

// routeProtocol marks our route as Coracle's (see rtnetlink(7)), metric as that of this installation.
const routeProtocol netlink.RouteProtocol = 0xd2

func (c *Config) metric() int {
	sum := sha256.Sum256([]byte(c.Prefix))
	return int(binary.BigEndian.Uint32(sum[:])>>1) + 1 // 0 would let the kernel match any
}

// route lets processes of the node connect to cluster IPs even where no other route covers them, with the node's address.
func (p *Proxy) route() error {
	if !p.ServiceCIDR.IsValid() {
		return nil
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	_, dst, err := netParse(p.ServiceCIDR)
	if err != nil {
		return err
	}
	err = netlink.RouteReplace(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Src: p.NodeIP.AsSlice(), Protocol: routeProtocol, Priority: p.metric()})
	if err != nil {
		return fmt.Errorf("add the route to services %s from %s: %w", p.ServiceCIDR, p.NodeIP, err)
	}
	return nil
}

// Reset removes the table and the route. It may be repeated, and works for what a killed process left.
func Reset(_ context.Context, c Config) error {
	if err := c.fill(); err != nil {
		return err
	}
	k, err := newKernel(&c)
	if err != nil {
		return err
	}
	errs := []error{k.reset(), k.close()}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	errs = append(errs, err)
	for _, r := range routes {
		if r.Priority != c.metric() {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

// Reset is the function Reset for this proxy, after its Run has returned.
func (p *Proxy) Reset(ctx context.Context) error { return Reset(ctx, p.Config) }
