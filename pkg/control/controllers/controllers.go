// Package controllers runs the reconcilers: the control loops that drive the cluster's actual state towards the desired
// state. all.go lists them. Each has its own folder, with a pure plan.go and a thin reconcile.go. Its invariant: a
// reconciler reaches the cluster only through its own client, with its own identity, and writes only what it declares.
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
	// Kinds are all stored kinds. The namespace, garbage, quota and storage migration reconcilers need them. The
	// list may change at run time. Required.
	Kinds Kinds
	// Only names the reconcilers to run. Empty means all.
	Only []string
	// RootCA lets pods verify the API server. Nil: kube-root-ca.crt is not published.
	RootCA *rootca.Bundle
	// NodeCA is the CA bundle that verifies nodes' serving certificates. Nil: it is not published.
	NodeCA *rootca.Bundle
	// SignToken signs the service account tokens that are kept in Secrets. Nil, or without RootCA: none are signed.
	SignToken tokensecret.Sign
	// Signers sign CertificateSigningRequests, by signer name. Requests for other signers are left alone.
	Signers map[string]certificates.Signer
	// Elsewhere deletes a namespace's objects in aggregated API servers. Nil: they are not deleted.
	Elsewhere namespace.Elsewhere
	// OwnedElsewhere finds owners and dependents in aggregated API servers. Nil: they are not garbage collected.
	OwnedElsewhere aggregated.Remotes
	// CheckPolicy type-checks validating admission policies. Nil: policies get no status.
	CheckPolicy policystatus.Check
	// ClusterCIDR is the range from which each node gets a pod CIDR: a /24, or a /64 for IPv6. The zero value
	// disables allocation.
	ClusterCIDR netip.Prefix
	// QuotaUsage computes the usage in a quota's scope. It includes requests that were charged to that version of
	// the quota. Nil: quotas get no status.
	QuotaUsage resourcequota.Usage
	// NodePatience is how long a node may miss heartbeats before it counts as lost. 0 means 40 s.
	NodePatience time.Duration
	// More are further reconcilers to run.
	More []*engine.Reconciler
	// PodMetrics reads the pods' CPU and memory usage for autoscalers. Nil: no metrics are available.
	PodMetrics autoscaling.Metrics
	// Adapters serve custom and external metrics. Nil: none are available.
	Adapters autoscaling.Adapters
	// RemoveVolume removes a local volume's directory from its node. Nil: local volumes are not reclaimed.
	RemoveVolume volumebinding.Remove
	// ResizeVolume sends a node the new size of a local volume. Nil: local volumes are not expanded.
	ResizeVolume volumebinding.Resize
	// LocalSnapshots lets nodes copy local volumes. Nil: local volumes are not snapshotted.
	LocalSnapshots localsnapshot.Nodes
	// LoadBalancer assigns addresses to Services of type LoadBalancer. Nil: they are neither assigned nor released.
	LoadBalancer *loadbalancer.Config
	// Metrics registers the reconcilers' metrics. Nil: none are registered.
	Metrics prometheus.Registerer
	// Log is slog.Default() if nil.
	Log *slog.Logger
}

// Validate reports missing required fields.
func (c Config) Validate() error {
	if c.ClientFor == nil {
		return errors.New("reconcile: ClientFor is required")
	}
	if c.Kinds == nil {
		return errors.New("reconcile: Kinds is required: the kinds that the server stores")
	}
	return nil
}

// Controllers is the run.Component that runs the reconcilers.
type Controllers struct {
	cfg     Config
	list    []*engine.Reconciler
	monitor *engine.Monitor
	// Readiness is set once all reconcilers have synced their caches.
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

// only returns the reconcilers with the given names, or all of them if names is empty.
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

// Report describes each reconciler: its declaration, its queue and its failing objects. It is empty before Run.
func (c *Controllers) Report() []engine.Report { return c.monitor.Report() }

// Run implements run.Component.
func (c *Controllers) Run(ctx context.Context) error {
	return engine.Run(ctx,
		engine.Config{ClientFor: c.cfg.ClientFor, Log: c.cfg.Log, Kinds: c.cfg.Kinds, Monitor: c.monitor}, c.list, func() {
			c.SetReady()
		})
}

var _ run.Component = (*Controllers)(nil)
