package server

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	chain "github.com/coracle-dev/coracle/pkg/api/admission"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers"
	"github.com/coracle-dev/coracle/pkg/control/controllers/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/control/controllers/rootca"
	"github.com/coracle-dev/coracle/pkg/control/election"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/control/scheduler/allocation"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
	storedkinds "github.com/coracle-dev/coracle/pkg/engine/kinds"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// actors creates the controllers and the scheduler, unless they are disabled.
func (l *plane) actors(kinds *kind.Catalog) error {
	p := l.process
	pods, err := netip.ParsePrefix(p.ClusterCIDR)
	if err != nil {
		return err
	}
	addresses, err := config.ParsePool(p.LoadBalancerPool)
	if err != nil {
		return err
	}
	l.rootCA, l.nodeCA = rootca.NewBundle(l.keys.Server.Bundle()), rootca.NewBundle(l.keys.Node.Bundle())
	if p.Runs(config.Controllers) {
		l.controllers, err = newLed(l, "controllers", l.election(election.Controllers),
			func(led *led[*controllers.Controllers], metrics prometheus.Registerer) (*controllers.Controllers, error) {
				clientFor := func(identity string) client.Interface {
					return led.checked(l.client(identity, "system:serviceaccounts"))
				}
				return controllers.New(controllers.Config{
					ClientFor: clientFor,
					More: l.systems.Reconcilers(system.Controllers{
						ClientFor:    clientFor,
						Connect:      l.nodes.Connect,
						TaskPatience: p.TaskNodeTimeout,
					}),
					RemoveVolume: l.nodes.removeVolume, ResizeVolume: l.nodes.resizeVolume, LocalSnapshots: localSnapshots{l.nodes},
					LoadBalancer: &loadbalancer.Config{
						Pool:         addresses,
						Reserved:     ownPorts(p.Config),
						Disabled:     !p.Runs(config.LoadBalancer),
						IngressPorts: l.ingressPorts(),
					},
					Adapters: func(ctx context.Context, path string, query url.Values) ([]byte, error) {
						return l.aggregator.Metrics(ctx, path, query)
					},
					Elsewhere: func(ctx context.Context, namespace string) []aggregated.Remaining {
						return l.aggregator.Empty(ctx, namespace)
					},
					OwnedElsewhere: l.aggregator,
					Kinds:          storedkinds.Stored(kinds), RootCA: l.rootCA, NodeCA: l.nodeCA,
					SignToken: p.accounts.tokens.SignKept, Signers: signers(l.keys),
					CheckPolicy: chain.TypeChecks(l.client(user.APIServerUser, user.SystemPrivilegedGroup), kinds, l.schemas),
					QuotaUsage:  l.registry.QuotaUsage, PodMetrics: l.usage, ClusterCIDR: pods, NodePatience: p.NodeMonitorGracePeriod,
					Log: component(p.log, "controllers"), Metrics: metrics,
				})
			})
		if err != nil {
			return err
		}
	}
	if l.scheduling, err = schedulerConfiguration(p.SchedulerConfig); err != nil {
		return err
	}
	if p.Runs(config.Scheduler) {
		l.scheduler, err = newLed(l, "scheduler", l.election(election.Scheduler),
			func(led *led[*scheduler.Scheduler], metrics prometheus.Registerer) (*scheduler.Scheduler, error) {
				return scheduler.New(scheduler.Config{
					Client:        led.checked(l.client(user.KubeScheduler)),
					Configuration: l.scheduling,
					Devices:       allocation.New(),
					TaskPatience:  p.TaskNodeTimeout,
					Log:           component(p.log, "scheduler"),
					Metrics:       metrics,
				})
			})
	}
	return err
}

// maxSchedulerConfiguration is the maximum size of a KubeSchedulerConfiguration, in bytes.
const maxSchedulerConfiguration = 1 << 20

// schedulerConfiguration reads a KubeSchedulerConfiguration. An empty path means the defaults.
func schedulerConfiguration(path string) (scheduler.Configuration, error) {
	if path == "" {
		return scheduler.Configuration{}, nil
	}
	data, err := bounded.File(path, maxSchedulerConfiguration)
	if err != nil {
		return scheduler.Configuration{}, fmt.Errorf("scheduler-config: %w", err)
	}
	c, err := scheduler.ParseConfiguration(data)
	if err != nil {
		return scheduler.Configuration{}, fmt.Errorf("scheduler-config %s: %w", path, err)
	}
	return c, nil
}
