// Package reconcile runs the reconcilers: the loops that bring the cluster
// from what is to what was asked for. all.go is the list of them; each has a
// folder of its own, with a pure plan.go and a thin reconcile.go.
//
// It may import client, and its own folders, which do not import each other
// but for engine. Its invariant: a reconciler reaches the cluster only through
// its own client, with its own identity, and writes only what it declares.
package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
	"github.com/coracle-dev/coracle/pkg/reconcile/resourcequota"
	"github.com/coracle-dev/coracle/pkg/reconcile/rootca"
	"github.com/coracle-dev/coracle/pkg/run"
)

// Kinds tells which kinds the server stores.
type Kinds = engine.Kinds

// Config is what the reconcilers need.
type Config struct {
	// ClientFor gives the client of an identity, such as
	// "system:serviceaccount:kube-system:replicaset-controller". Required.
	ClientFor func(identity string) client.Interface
	// Kinds are all stored kinds: what a namespace may hold, and what may own or be owned. They may change. Required.
	Kinds Kinds
	// RootCA is what pods trust the API server by. Nil: no kube-root-ca.crt is written.
	RootCA *rootca.Bundle
	// ClusterCIDR is where nodes get the addresses of their pods from, a /24 each (a /64 of IPv6).
	// Invalid (the zero value): nodes get none.
	ClusterCIDR netip.Prefix
	// QuotaUsage counts what a quota's scope uses, with what its version was charged for. Nil: quotas get no status.
	QuotaUsage resourcequota.Usage
	// NodePatience is how long a node may be silent before it counts as lost; 0 is 40 s.
	NodePatience time.Duration
	// Metrics takes the reconcilers' metrics; nil for none.
	Metrics prometheus.Registerer
	// Log is slog.Default() if nil.
	Log *slog.Logger
}

// Validate checks a Config.
func (c Config) Validate() error {
	if c.ClientFor == nil {
		return errors.New("reconcile: ClientFor is required")
	}
	if c.Kinds == nil {
		return errors.New("reconcile: Kinds is required: tell which kinds the server stores")
	}
	return nil
}

// Controllers is the component "controllers".
type Controllers struct {
	cfg     Config
	list    []*engine.Reconciler
	monitor *engine.Monitor
	ready   chan struct{}
}

// New makes the component.
func New(cfg Config) (*Controllers, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Controllers{cfg: cfg, list: All(cfg), monitor: engine.NewMonitor(cfg.Metrics), ready: make(chan struct{})}, nil
}

// Name implements run.Component.
func (c *Controllers) Name() string { return "controllers" }

// Ready implements run.Component: all reconcilers have seen the present state.
func (c *Controllers) Ready() <-chan struct{} { return c.ready }

// Report describes each reconciler: what it declares, its queue, and what it could not reconcile. It is empty before Run.
func (c *Controllers) Report() []engine.Report { return c.monitor.Report() }

// Run implements run.Component.
func (c *Controllers) Run(ctx context.Context) error {
	return engine.Run(ctx, engine.Config{ClientFor: c.cfg.ClientFor, Log: c.cfg.Log, Monitor: c.monitor}, c.list, func() { close(c.ready) })
}

var _ run.Component = (*Controllers)(nil)
