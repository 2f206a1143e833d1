package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/usage"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers"
	"github.com/coracle-dev/coracle/pkg/control/controllers/rootca"
	"github.com/coracle-dev/coracle/pkg/control/election"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/control/scheduler/allocation"
	storedkinds "github.com/coracle-dev/coracle/pkg/engine/kinds"
	"github.com/coracle-dev/coracle/pkg/systems"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// Outside configures a scheduler or controllers that run as a separate process against any API server.
type Outside struct {
	// REST is the connection to the API server, with the permissions that the components need. Required.
	REST *rest.Config
	// Listen is the address of health checks and metrics, which need no authentication. Required.
	Listen string
	// Lease is the name of the Lease in kube-system that elects one of several processes. The default is
	// upstream's name, or LeaseOf(Only) if Only is set.
	Lease string
	// SchedulerConfig is the path of a KubeSchedulerConfiguration. Empty means the defaults.
	SchedulerConfig string
	// Only names the reconcilers to run. Empty means all.
	Only []string
	// SourceNamespaces are the namespaces in which Kontrol's reconcilers read Secrets and ConfigMaps. Empty means
	// all. It limits the shared cache, so do not run other reconcilers that read these kinds with it.
	SourceNamespaces []string
	// ClusterCIDR is the range of the nodes' pod CIDRs. Empty means that no pod CIDRs are allocated.
	ClusterCIDR string
	// NodeMonitorGracePeriod is how long a node may send no heartbeat before it counts as lost. 0 means the default.
	NodeMonitorGracePeriod time.Duration
	LogLevel, LogFormat    string
}

// RunScheduler runs the scheduler until ctx is done.
func RunScheduler(ctx context.Context, o Outside) error {
	configuration, err := schedulerConfiguration(o.SchedulerConfig)
	if err != nil {
		return err
	}
	return o.run(ctx, "scheduler", election.Scheduler,
		func(c *client.Client, checked client.Interface, metrics prometheus.Registerer,
			log *slog.Logger) ([]run.Component, error) {
			s, err := scheduler.New(scheduler.Config{
				Client:        checked,
				Configuration: configuration,
				Devices:       allocation.New(),
				Log:           log,
				Metrics:       metrics,
			})
			return []run.Component{c, s}, err
		})
}

// RunControllers runs the controllers until ctx is done.
func RunControllers(ctx context.Context, o Outside) error {
	lease := election.Controllers
	if len(o.Only) > 0 {
		lease = LeaseOf(o.Only)
	}
	var pods netip.Prefix
	if o.ClusterCIDR != "" {
		var err error
		if pods, err = netip.ParsePrefix(o.ClusterCIDR); err != nil {
			return fmt.Errorf("cluster-cidr: %w", err)
		}
	}
	var roots *rootca.Bundle
	o.REST = rest.CopyConfig(o.REST) // copied, because LoadTLSFiles changes it
	if err := rest.LoadTLSFiles(o.REST); err != nil {
		return err
	}
	if len(o.REST.CAData) > 0 {
		roots = rootca.NewBundle(o.REST.CAData)
	}
	api, err := newReader(o.REST)
	if err != nil {
		return err
	}
	return o.run(ctx, "controllers", lease,
		func(c *client.Client, checked client.Interface, metrics prometheus.Registerer,
			log *slog.Logger) ([]run.Component, error) {
			kinds, err := storedkinds.Discover(o.REST, c.Cache(), log)
			if err != nil {
				return nil, err
			}
			clientFor := func(string) client.Interface { return checked }
			controllers, err := controllers.New(controllers.Config{
				ClientFor: clientFor, Kinds: kinds, Only: o.Only,
				More: systems.All().Reconcilers(system.Controllers{
					ClientFor: clientFor, ServerVersion: serverVersion(o.REST), SourceNamespaces: o.SourceNamespaces,
				}),
				PodMetrics: usage.New(api.node, log), Adapters: api.get,
				RootCA: roots, ClusterCIDR: pods, NodePatience: o.NodeMonitorGracePeriod, Log: log, Metrics: metrics,
			})
			return []run.Component{c, kinds, controllers}, err
		})
}

// serverVersion returns the version of an API server, or "" if it does not respond within versionPatience.
func serverVersion(c *rest.Config) string {
	c = rest.CopyConfig(c)
	c.Timeout = versionPatience
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return ""
	}
	v, err := d.ServerVersion()
	if err != nil {
		return ""
	}
	return v.GitVersion
}

const versionPatience = 5 * time.Second

// LeaseOf returns the name of the Lease for a set of reconcilers. Different sets have different Leases, so that
// their processes do not wait for each other.
func LeaseOf(only []string) string {
	only = slices.Sorted(slices.Values(only))
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.Join(slices.Compact(only), ",")))
	return fmt.Sprintf("coracle-controllers-%08x", h.Sum32())
}

// builder creates the components of one term of leadership. checked is c with writes that fail once the term is over.
type builder func(c *client.Client, checked client.Interface, metrics prometheus.Registerer,
	log *slog.Logger) ([]run.Component, error)

func (o Outside) run(ctx context.Context, name, lease string, build builder) error {
	handler, err := logHandler(os.Stderr, o.LogLevel, o.LogFormat)
	if err != nil {
		return err
	}
	log := component(slog.New(handler), name)
	quietLibraries(log)
	serving := newServing()
	group, metrics, err := o.group(name, lease, log, serving, build)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return err
	}
	health := newOutsideHealth(listener, metrics, serving)
	log.Info("starting", "version", version.Info().GitVersion, "server", o.REST.Host, "listen", listener.Addr().String())
	err = run.All(ctx, run.Observer{Hung: hung(log)}, health, group)
	if ctx.Err() != nil && !errors.As(err, new(*run.HungError)) {
		return nil
	}
	return err
}

// cached returns the configuration of the components' client, which caches Secrets and ConfigMaps only from
// SourceNamespaces.
func (o Outside) cached() client.Config {
	c := client.Config{REST: o.REST}
	if len(o.SourceNamespaces) == 0 {
		return c
	}
	only := ctrlcache.ByObject{Namespaces: map[string]ctrlcache.Config{}}
	for _, n := range o.SourceNamespaces {
		only.Namespaces[n] = ctrlcache.Config{}
	}
	secret, configMap := &corev1.Secret{}, &corev1.ConfigMap{}
	c.Only = map[ctrl.Object]ctrlcache.ByObject{secret: only, configMap: only}
	c.Known = map[ctrl.Object]meta.RESTScope{secret: meta.RESTScopeNamespace, configMap: meta.RESTScopeNamespace}
	return c
}

// group returns the components that run while this process leads, and a gatherer of their metrics.
func (o Outside) group(name, lease string, log *slog.Logger, serving *serving,
	build builder) (*run.Group, prometheus.Gatherer, error) {
	fixed := prometheus.NewRegistry()
	fixed.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// Read the Lease from the API server, never from a cache.
	electing, err := client.New(client.Config{REST: o.REST, Direct: []ctrl.Object{&coordinationv1.Lease{}}})
	if err != nil {
		return nil, nil, err
	}
	if o.Lease != "" {
		lease = o.Lease
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, nil, err
	}
	identity := host + "_" + rand.Text() // in upstream's format: a lone server does not take its Lease
	e, err := election.New(election.Config{
		Client:   electing,
		Lease:    lease,
		Identity: func() string { return identity },
		Reached:  func(answered bool) { serving.set(&serving.answered, answered) },
		Metrics:  fixed,
		Log:      log,
	})
	if err != nil {
		return nil, nil, err
	}
	var current atomic.Pointer[prometheus.Registry]
	term := func() ([]run.Component, error) {
		metrics := prometheus.NewRegistry()
		c, err := client.New(o.cached())
		if err != nil {
			return nil, err
		}
		list, err := build(c, client.Checked(c, e.Check), metrics, log)
		if err == nil {
			current.Store(metrics)
		}
		return append(list, &servedTerm{serving: serving}), err
	}
	if _, err := term(); err != nil { // report invalid options before anything starts
		return nil, nil, err
	}
	gather := prometheus.Gatherers{fixed, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		if !e.Leads() {
			return nil, nil
		}
		return current.Load().Gather()
	})}
	return run.NewGroup(name, servedElection{e, serving}, run.Observer{Hung: hung(log)}, term), gather, nil
}
