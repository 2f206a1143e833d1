package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
)

const (
	// retryFirst and retryMost are the first and the longest back-off after a failure.
	retryFirst = 100 * time.Millisecond
	retryMost  = 10 * time.Second
	// setupTimeout is how long a new pod waits for its rules. Then its start fails and is retried.
	setupTimeout = 10 * time.Second
)

// Config configures an Enforcer.
type Config struct {
	// Source provides the rules.
	Source   Source
	NodeName string
	// Sandboxes returns the addresses of the pods that an earlier process left, by UID. It may be nil.
	Sandboxes func() map[string]netip.Addr
	// Prefix begins the table's name.
	Prefix string
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Enforcer keeps a node's nftables table in line with its Source. It implements run.Component.
type Enforcer struct {
	Config
	kernel *kernel
	guard  run.Guard
	// Ready does not wait for rules, unlike Setup.
	run.Readiness
	wake chan struct{} // capacity 1: the rules or the pods changed

	mu      sync.Mutex
	rules   *Rules                   // the latest; nil until the first arrive
	local   map[types.UID]netip.Addr // pods that were set up; the API may not know their addresses yet
	written map[types.UID]netip.Addr // addresses of pods whose rules the kernel has, or that need none
	lost    bool                     // another program removed the table
	none    bool                     // the last sync had no policies, so the kernel has no table
	changed chan struct{}            // closed after each sync
}

var _ run.Component = (*Enforcer)(nil)

// NewEnforcer returns an Enforcer. It changes nothing on the node until Run is called.
func NewEnforcer(c Config) *Enforcer {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	e := &Enforcer{
		Config:  c,
		wake:    make(chan struct{}, 1),
		local:   map[types.UID]netip.Addr{},
		changed: make(chan struct{}),
	}
	e.guard = run.Guard{Log: c.Logger, Component: e.Name()}
	return e
}

// Name implements run.Component.
func (e *Enforcer) Name() string { return "network-policy" }

// Run implements run.Component. The table stays in place when Run returns.
func (e *Enforcer) Run(ctx context.Context) (err error) {
	if e.kernel, err = newKernel(e.Prefix); err != nil {
		return err
	}
	defer func() { _ = e.kernel.close() }()
	if e.Sandboxes != nil {
		e.mu.Lock()
		for uid, a := range e.Sandboxes() {
			e.local[types.UID(uid)] = a
		}
		e.mu.Unlock()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { e.guard.Loop(ctx, "rules", e.follow) })
	e.SetReady()
	retry := backoff.Backoff{First: retryFirst, Most: retryMost}
	for ctx.Err() == nil {
		var again <-chan time.Time
		var err error
		if p := e.guard.Do("sync", func() { err = e.sync(ctx) }); p != nil {
			e.kernel.abandon()
			err = p
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			pause := retry.Next()
			e.Logger.Error("could not write network policy rules, retrying", "after", pause, "error", err)
			again = time.After(pause)
		} else {
			retry.Reset()
		}
		select {
		case <-e.wake:
		case <-again:
		case <-ctx.Done():
		}
	}
	return nil
}

func (e *Enforcer) follow(ctx context.Context) {
	retry := backoff.Backoff{First: retryFirst, Most: retryMost}
	for version := ""; ; {
		rules, err := e.Source.Next(ctx, e.NodeName, version)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			version = rules.Version
			retry.Reset()
			e.mu.Lock()
			rules.keep(e.rules, e.local)
			e.rules = rules
			e.mu.Unlock()
			e.mark()
			continue
		}
		pause := retry.Next()
		e.Logger.Warn("could not get network policy rules, the last ones stay in force", "retry", pause, "error", err)
		if !backoff.Sleep(ctx, pause) {
			return
		}
	}
}

// Table returns the name of the nftables table. Without policies the table does not exist.
func (e *Enforcer) Table() string { return tableName(e.Prefix) }

// Written reports whether the last sync wrote the table.
func (e *Enforcer) Written() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.written != nil
}

// Rewrite makes Run write the table again after another program removed it.
func (e *Enforcer) Rewrite(context.Context) error {
	e.mu.Lock()
	e.lost = true
	e.mu.Unlock()
	e.mark()
	return nil
}

func (e *Enforcer) mark() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *Enforcer) sync(ctx context.Context) error {
	e.mu.Lock()
	rules, none := e.rules, e.none
	if e.lost {
		e.kernel.last, e.lost = nil, false
	}
	var s *state
	var written map[types.UID]netip.Addr
	if rules != nil && rules.Active {
		s, written = rules.state(e.local)
	}
	e.mu.Unlock()
	switch {
	case rules == nil:
		return nil
	case s == nil && none: // nothing to write, but Setup may wait for policies that no longer exist
	case s == nil:
		if err := e.kernel.reset(ctx); err != nil {
			return err
		}
	default:
		if err := e.kernel.write(ctx, s); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.none, e.written = s == nil, written
	close(e.changed)
	e.changed = make(chan struct{})
	return nil
}

// keep copies the rules of pods that still run here from before: a forced deletion removes a pod from the API at once,
// and its processes may run until its grace period ends. Such pods come first, because another pod may already have the
// address of one that has been released since. If an earlier process had the rules, before is nil, and the pods are
// isolated.
func (r *Rules) keep(before *Rules, local map[types.UID]netip.Addr) {
	if !r.Active {
		return
	}
	there := make(map[types.UID]bool, len(r.Pods))
	for _, p := range r.Pods {
		there[p.UID] = true
	}
	var kept []Pod
	all := newSets()
	if before == nil {
		before = &Rules{}
		for uid := range local {
			if !there[uid] && !strings.HasPrefix(string(uid), staticPrefix) {
				kept = append(kept, Pod{UID: uid, Ingress: all.chain("in", nil), Egress: all.chain("out", nil)})
			}
		}
	}
	old := before.sets()
	for _, p := range before.Pods {
		if _, here := local[p.UID]; !here || there[p.UID] {
			continue
		}
		kept = append(kept, p)
		for _, chain := range []string{p.Ingress, p.Egress} {
			if chain != "" {
				all.take(&old, chain)
			}
		}
	}
	if len(kept) == 0 {
		return
	}
	all.add(r.sets()) // the newer content of a set
	r.Pods = append(kept, r.Pods...)
	r.Chains, r.Addresses, r.Blocks, r.Endpoints = all.chains, all.addresses, all.blocks, all.endpoints
}

func (r *Rules) sets() sets { return sets{r.Chains, r.Addresses, r.Blocks, r.Endpoints} }

// state returns the table's content and the addresses of the pods that it covers. Addresses in local override
// addresses in the API, which may still show an address under a pod that had it before.
func (r *Rules) state(local map[types.UID]netip.Addr) (*state, map[types.UID]netip.Addr) {
	s := &state{
		chains:    r.Chains,
		addresses: r.Addresses,
		blocks:    r.Blocks,
		endpoints: r.Endpoints,
		ingress:   map[netip.Addr]string{},
		egress:    map[netip.Addr]string{},
	}
	written := make(map[types.UID]netip.Addr, len(r.Pods))
	set := func(m map[netip.Addr]string, a netip.Addr, chain string) {
		if delete(m, a); chain != "" {
			m[a] = chain
		}
	}
	for _, known := range []bool{false, true} {
		for _, p := range r.Pods {
			a, here := local[p.UID]
			if here != known {
				continue
			}
			if !here {
				a = p.Address
			}
			written[p.UID] = a
			if a.IsValid() {
				set(s.ingress, a, p.Ingress)
				set(s.egress, a, p.Egress)
			}
		}
	}
	return s, written
}

// Setup waits until the policies that select a pod of this node are enforced at its address. Call it before the
// pod's containers start. Static pods do not wait for an API server.
func (e *Enforcer) Setup(ctx context.Context, p *corev1.Pod, ip string) error {
	a, err := netip.ParseAddr(ip)
	if err != nil || p.Spec.HostNetwork {
		return nil //nolint:nilerr // a pod without an address of its own
	}
	uid := identity(p, static.IsStatic(p))
	e.mu.Lock()
	if uid != p.UID {
		delete(e.local, p.UID) // from Sandboxes
	}
	if e.local[uid] != a {
		e.local[uid] = a
		e.mark()
	}
	e.mu.Unlock()
	timeout := time.NewTimer(setupTimeout)
	defer timeout.Stop()
	for {
		e.mu.Lock()
		known, changed := e.rules != nil, e.changed
		free := known && !e.rules.Active && e.none // with policies, wait for the kernel, which may reject them
		done := free || e.written[uid] == a
		e.mu.Unlock()
		if done || !known && static.IsStatic(p) {
			return nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			if static.IsStatic(p) {
				return nil // no API server answers; sync writes the rules once one does
			}
			if !known {
				return errors.New("the network policies of this pod are not known yet: no API server has answered")
			}
			return fmt.Errorf("the network policies of this pod are not enforced at %s yet", a)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Release forgets a pod. Call it once none of the pod's processes runs.
func (e *Enforcer) Release(p *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.local, identity(p, static.IsStatic(p)))
	delete(e.local, p.UID)
}

// Reset removes the table, including one that a killed process left. It may be repeated.
func Reset(prefix string) error {
	k, err := newKernel(prefix)
	if err != nil {
		return err
	}
	return errors.Join(k.reset(context.Background()), k.close())
}
