// Package controllers runs the reconcilers: the control loops that drive the
// cluster's actual state towards the desired state. They are listed in all.go;
// each has its own folder, with a pure plan.go and a thin reconcile.go.
//
// Its invariant: a reconciler reaches the cluster only through its own client, with its own identity, and writes only
// what it declares.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers/autoscaling"
	"github.com/coracle-dev/coracle/pkg/control/controllers/certificates"
	"github.com/coracle-dev/coracle/pkg/control/controllers/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/control/controllers/localsnapshot"
	"github.com/coracle-dev/coracle/pkg/control/controllers/namespace"
	"github.com/coracle-dev/coracle/pkg/control/controllers/policystatus"
	"github.com/coracle-dev/coracle/pkg/control/controllers/resourcequota"
	"github.com/coracle-dev/coracle/pkg/control/controllers/rootca"
	"github.com/coracle-dev/coracle/pkg/control/controllers/tokensecret"
	"github.com/coracle-dev/coracle/pkg/control/controllers/volumebinding"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// Kinds lists the kinds that the server stores.
type Kinds = engine.Kinds

// Config configures the reconcilers.
type Config struct {
	// ClientFor returns the client for an identity, such as
	// "system:serviceaccount:kube-system:replicaset-controller". Required.
	ClientFor func(identity string) client.Interface
	// Kinds are all stored kinds: what a namespace may hold, and what may own or be owned. They may change. Required.
	Kinds Kinds
	// Only names the reconcilers to run; empty: all.
	Only []string
	// RootCA is the CA bundle by which pods verify the API server. Nil: no kube-root-ca.crt is written.
	RootCA *rootca.Bundle
	// NodeCA is the CA bundle by which nodes' serving certificates are verified. Nil: it is not published.
	NodeCA *rootca.Bundle
	// SignToken signs tokens of service accounts that are kept in Secrets; they come with RootCA. Nil: none is.
	SignToken tokensecret.Sign
	// Signers sign CertificateSigningRequests, by the name of the signer. Nil: none is signed.
	Signers map[string]certificates.Signer
	// Elsewhere deletes what aggregated API servers keep in a namespace. Nil: nothing there is deleted.
	Elsewhere namespace.Elsewhere
	// OwnedElsewhere is what aggregated API servers keep that may own or be owned. Nil: nothing there is collected.
	OwnedElsewhere aggregated.Remotes
	// CheckPolicy checks the types in a validating admission policy. Nil: policies get no status.
	CheckPolicy policystatus.Check
	// ClusterCIDR is the range from which nodes get their pod CIDRs, a /24 each (a /64 for IPv6).
	// Invalid (the zero value): none are allocated.
	ClusterCIDR netip.Prefix
	// QuotaUsage computes the usage in a quota's scope, including what its version was charged for. Nil: quotas get no
	// status.
	QuotaUsage resourcequota.Usage
	// NodePatience is the time without a heartbeat after which a node is lost; 0 means 40 s.
	NodePatience time.Duration
	// More are further reconcilers, which run with the others.
	More []*engine.Reconciler
	// PodMetrics is what autoscalers go by; nil: no metrics are known.
	PodMetrics autoscaling.Metrics
	// Adapters answers for custom and external metrics; nil: there are none.
	Adapters autoscaling.Adapters
	// RemoveVolume removes the directory of a local volume from its node. Nil: local volumes are not reclaimed.
	RemoveVolume volumebinding.Remove
	// ResizeVolume tells a node the new size of a local volume. Nil: local volumes are not expanded.
	ResizeVolume volumebinding.Resize
	// LocalSnapshots has nodes copy local volumes. Nil: no snapshots of them are taken.
	LocalSnapshots localsnapshot.Nodes
	// LoadBalancer gives addresses to services of type LoadBalancer. Nil: nothing does, and nothing takes them away.
	LoadBalancer *loadbalancer.Config
	// Metrics registers the reconcilers' metrics; nil for none.
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
		return errors.New("reconcile: Kinds is required: the kinds that the server stores")
	}
	return nil
}

// Controllers is the component "controllers".
type Controllers struct {
	cfg     Config
	list    []*engine.Reconciler
	monitor *engine.Monitor
	// Ready: all reconcilers have synced.
	run.Readiness
}

// New creates the component.
func New(cfg Config) (*Controllers, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	list, err := only(All(cfg), cfg.Only)
	if err != nil {
		return nil, err
	}
	return &Controllers{cfg: cfg, list: list, monitor: engine.NewMonitor(cfg.Metrics)}, nil
}

// only returns the named reconcilers; all if none is named.
func only(all []*engine.Reconciler, names []string) ([]*engine.Reconciler, error) {
	if len(names) == 0 {
		return all, nil
	}
	known := make([]string, 0, len(all))
	for _, r := range all {
		known = append(known, r.Name)
	}
	slices.Sort(known)
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no reconciler %q here; there are %s", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(r *engine.Reconciler) bool { return !slices.Contains(names, r.Name) }), nil
}

// Name implements run.Component.
func (c *Controllers) Name() string { return "controllers" }

// Report describes each reconciler: its declaration, its queue, and its failing objects. It is empty before Run.
func (c *Controllers) Report() []engine.Report { return c.monitor.Report() }

// Run implements run.Component.
func (c *Controllers) Run(ctx context.Context) error {
	return engine.Run(ctx,
		engine.Config{ClientFor: c.cfg.ClientFor, Log: c.cfg.Log, Kinds: c.cfg.Kinds, Monitor: c.monitor}, c.list, func() {
			c.SetReady()
		})
}

var _ run.Component = (*Controllers)(nil)
