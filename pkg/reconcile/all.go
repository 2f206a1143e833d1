package reconcile

import (
	"cmp"

	"github.com/coracle-dev/coracle/pkg/buildbarn/check"
	"github.com/coracle-dev/coracle/pkg/buildbarn/check/packed"
	"github.com/coracle-dev/coracle/pkg/buildbarn/metrics"
	"github.com/coracle-dev/coracle/pkg/reconcile/attachdetach"
	"github.com/coracle-dev/coracle/pkg/reconcile/attributesclass"
	"github.com/coracle-dev/coracle/pkg/reconcile/autoscaling"
	"github.com/coracle-dev/coracle/pkg/reconcile/bootstraptokens"
	"github.com/coracle-dev/coracle/pkg/reconcile/buildbarn"
	"github.com/coracle-dev/coracle/pkg/reconcile/certificates"
	"github.com/coracle-dev/coracle/pkg/reconcile/cronjob"
	"github.com/coracle-dev/coracle/pkg/reconcile/daemonset"
	"github.com/coracle-dev/coracle/pkg/reconcile/deployment"
	"github.com/coracle-dev/coracle/pkg/reconcile/devicetaint"
	"github.com/coracle-dev/coracle/pkg/reconcile/disruption"
	"github.com/coracle-dev/coracle/pkg/reconcile/endpoints"
	"github.com/coracle-dev/coracle/pkg/reconcile/endpointslice"
	"github.com/coracle-dev/coracle/pkg/reconcile/endpointslicemirroring"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
	"github.com/coracle-dev/coracle/pkg/reconcile/ephemeral"
	"github.com/coracle-dev/coracle/pkg/reconcile/externalworker"
	"github.com/coracle-dev/coracle/pkg/reconcile/garbage"
	"github.com/coracle-dev/coracle/pkg/reconcile/job"
	"github.com/coracle-dev/coracle/pkg/reconcile/kontrol"
	"github.com/coracle-dev/coracle/pkg/reconcile/kontrolbundle"
	"github.com/coracle-dev/coracle/pkg/reconcile/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/reconcile/localsnapshot"
	"github.com/coracle-dev/coracle/pkg/reconcile/namespace"
	"github.com/coracle-dev/coracle/pkg/reconcile/nodeipam"
	"github.com/coracle-dev/coracle/pkg/reconcile/nodelifecycle"
	"github.com/coracle-dev/coracle/pkg/reconcile/podgc"
	"github.com/coracle-dev/coracle/pkg/reconcile/policystatus"
	"github.com/coracle-dev/coracle/pkg/reconcile/replicaset"
	"github.com/coracle-dev/coracle/pkg/reconcile/resourceclaim"
	"github.com/coracle-dev/coracle/pkg/reconcile/resourcequota"
	"github.com/coracle-dev/coracle/pkg/reconcile/roles"
	"github.com/coracle-dev/coracle/pkg/reconcile/rootca"
	"github.com/coracle-dev/coracle/pkg/reconcile/serviceaccount"
	"github.com/coracle-dev/coracle/pkg/reconcile/servicecidr"
	"github.com/coracle-dev/coracle/pkg/reconcile/statefulset"
	"github.com/coracle-dev/coracle/pkg/reconcile/storagemigration"
	"github.com/coracle-dev/coracle/pkg/reconcile/tainteviction"
	"github.com/coracle-dev/coracle/pkg/reconcile/task"
	"github.com/coracle-dev/coracle/pkg/reconcile/taskschedule"
	"github.com/coracle-dev/coracle/pkg/reconcile/tokensecret"
	"github.com/coracle-dev/coracle/pkg/reconcile/ttlafterfinished"
	"github.com/coracle-dev/coracle/pkg/reconcile/volumebinding"
	"github.com/coracle-dev/coracle/pkg/reconcile/volumesnapshot"
	"github.com/coracle-dev/coracle/pkg/reconcile/worker"
	"github.com/coracle-dev/coracle/pkg/version"
)

// All lists the reconcilers.
func All(cfg Config) []*engine.Reconciler {
	list := []*engine.Reconciler{
		deployment.New(),
		replicaset.New(),
		replicaset.NewReplication(),
		daemonset.New(),
		statefulset.New(),
		endpointslice.New(),
		endpoints.New(),
		endpointslicemirroring.New(),
		servicecidr.New(),
		namespace.New(cfg.Kinds, cfg.Elsewhere),
		garbage.New(cfg.Kinds, cfg.OwnedElsewhere),
		serviceaccount.New(),
		nodelifecycle.New(cfg.NodePatience),
		tainteviction.New(),
		certificates.NewPodCleaner(),
		podgc.New(),
		autoscaling.New(cfg.PodMetrics, cfg.Adapters),
		disruption.New(),
		disruption.NewStale(),
		roles.NewAggregation(),
		task.New(cfg.TaskPatience, cfg.ForgetTask),
		taskschedule.New(),
		externalworker.New(),
		job.New(),
		cronjob.New(),
		ttlafterfinished.New(),
		certificates.New(cfg.Signers),
		bootstraptokens.NewSigner(),
		bootstraptokens.NewCleaner(),
		volumebinding.New(cfg.RemoveVolume, cfg.ResizeVolume),
		volumesnapshot.New(),
		volumesnapshot.NewGroups(),
		localsnapshot.New(cfg.LocalSnapshots),
		ephemeral.New(),
		attachdetach.New(),
		attributesclass.New(),
		worker.New(),
		storagemigration.New(cfg.Kinds),
		resourceclaim.New(),
		resourceclaim.NewRelease(),
		devicetaint.New(),
		devicetaint.NewStatus(),
	}
	list = append(list, kontrol.New(cfg.ClientFor("system:serviceaccount:kube-system:"+kontrol.Account), cmp.Or(cfg.ServerVersion, version.Info().GitVersion), cfg.Tunnels, cfg.SourceNamespaces)...)
	list = append(list, buildbarn.New(metrics.Read, check.New(packed.Open))...)
	list = append(list, kontrolbundle.New(kontrolbundle.Registries{}, cfg.SourceNamespaces))
	if cfg.RootCA != nil {
		list = append(list, rootca.New(cfg.RootCA), rootca.NewPublisher(rootca.APIServer(), cfg.RootCA))
	}
	if cfg.SignToken != nil && cfg.RootCA != nil {
		list = append(list, tokensecret.New(cfg.SignToken, cfg.RootCA))
	}
	if cfg.NodeCA != nil {
		list = append(list, rootca.NewPublisher(rootca.Kubelet(), cfg.NodeCA))
	}
	if cfg.QuotaUsage != nil {
		list = append(list, resourcequota.New(cfg.Kinds, cfg.QuotaUsage))
	}
	if cfg.CheckPolicy != nil {
		list = append(list, policystatus.New(cfg.CheckPolicy))
	}
	if cfg.LoadBalancer != nil {
		list = append(list, loadbalancer.New(*cfg.LoadBalancer))
	}
	if cfg.ClusterCIDR.IsValid() {
		list = append(list, nodeipam.New(cfg.ClusterCIDR))
	}
	return list
}
