package server

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/election"
)

// led is a component that runs only on the server that leads its election. Each term of leadership gets a new
// instance with its own metrics.
type led[T run.Component] struct {
	*run.Group
	election *election.Election
	term     atomic.Pointer[term[T]]
}

type term[T run.Component] struct {
	component T
	metrics   *prometheus.Registry
}

// election returns the configuration of an election by one of the Leases that upstream uses.
func (l *plane) election(lease string) election.Config {
	return election.Config{
		Client: l.client("system:" + lease), Lease: lease, Metrics: l.process.metrics.plane,
		Identity: func() string { return election.Identity(l.process.NodeName, l.store.Member()) },
		Alone:    l.store.Alone, Sync: l.catchUp,
	}
}

// newLed creates a component that runs while this server leads. build creates one instance per term; it must wrap
// its clients with checked.
func newLed[T run.Component](l *plane, name string, c election.Config,
	build func(*led[T], prometheus.Registerer) (T, error)) (*led[T], error) {
	log := component(l.process.log, name)
	c.Log = log
	e, err := election.New(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out := &led[T]{election: e}
	make := func() (*term[T], error) {
		metrics := prometheus.NewRegistry()
		c, err := build(out, metrics)
		return &term[T]{c, metrics}, err
	}
	// Create the first instance now, so that invalid options are reported before anything starts.
	next, err := make()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out.Group = run.NewGroup(name, e, run.Observer{Hung: hung(log)}, func() ([]run.Component, error) {
		if next == nil {
			if next, err = make(); err != nil {
				return nil, err
			}
		}
		this := next
		next = nil
		out.term.Store(this)
		return []run.Component{this.component}, nil
	})
	return out, nil
}

// checked returns a client whose writes fail once this server no longer leads.
func (l *led[T]) checked(c client.Interface) client.Interface {
	return client.Checked(c, l.election.Check)
}

// leads returns the component of the current term if this server leads.
func (l *led[T]) leads() (c T, ok bool) {
	if l == nil || !l.election.Leads() {
		return c, false
	}
	t := l.term.Load()
	if t == nil {
		return c, false
	}
	return t.component, true
}

// Gather implements prometheus.Gatherer.
func (l *led[T]) Gather() ([]*dto.MetricFamily, error) {
	if _, ok := l.leads(); !ok {
		return nil, nil
	}
	return l.term.Load().metrics.Gather()
}

// catchUp waits until the cache has everything that was written before the call.
func (l *plane) catchUp(ctx context.Context) error {
	at, err := l.store.Revision(ctx)
	if err != nil {
		return err
	}
	return l.cache.WaitFor(ctx, at)
}

// yielded is a component that releases the Leases of components that this server does not run, so that upstream's
// components can acquire them at once.
type yielded struct {
	plane  *plane
	leases []string
	run.Readiness
}

func (y *yielded) Name() string { return "leases" }
func (y *yielded) Run(ctx context.Context) error {
	y.SetReady()
	for _, lease := range y.leases {
		if !y.plane.store.Alone() {
			break // another server may run these components
		}
		if err := election.Yield(ctx, y.plane.client("system:"+lease), lease); err != nil && ctx.Err() == nil {
			y.plane.process.log.Warn("could not release leader election lease", "lease", lease, "error", err)
		}
	}
	<-ctx.Done()
	return nil
}
