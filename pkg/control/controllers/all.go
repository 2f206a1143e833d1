package controllers

import (
	"github.com/coracle-dev/coracle/pkg/control/controllers/attachdetach"
	"github.com/coracle-dev/coracle/pkg/control/controllers/attributesclass"
	"github.com/coracle-dev/coracle/pkg/control/controllers/autoscaling"
	"github.com/coracle-dev/coracle/pkg/control/controllers/bootstraptokens"
	"github.com/coracle-dev/coracle/pkg/control/controllers/certificates"
	"github.com/coracle-dev/coracle/pkg/control/controllers/cronjob"
	"github.com/coracle-dev/coracle/pkg/control/controllers/daemonset"
	"github.com/coracle-dev/coracle/pkg/control/controllers/deployment"
	"github.com/coracle-dev/coracle/pkg/control/controllers/devicetaint"
	"github.com/coracle-dev/coracle/pkg/control/controllers/disruption"
	"github.com/coracle-dev/coracle/pkg/control/controllers/endpoints"
	"github.com/coracle-dev/coracle/pkg/control/controllers/endpointslice"
	"github.com/coracle-dev/coracle/pkg/control/controllers/endpointslicemirroring"
	"github.com/coracle-dev/coracle/pkg/control/controllers/ephemeral"
	"github.com/coracle-dev/coracle/pkg/control/controllers/garbage"
	"github.com/coracle-dev/coracle/pkg/control/controllers/job"
	"github.com/coracle-dev/coracle/pkg/control/controllers/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/control/controllers/localsnapshot"
	"github.com/coracle-dev/coracle/pkg/control/controllers/namespace"
	"github.com/coracle-dev/coracle/pkg/control/controllers/nodeipam"
	"github.com/coracle-dev/coracle/pkg/control/controllers/nodelifecycle"
	"github.com/coracle-dev/coracle/pkg/control/controllers/podgc"
	"github.com/coracle-dev/coracle/pkg/control/controllers/policystatus"
	"github.com/coracle-dev/coracle/pkg/control/controllers/replicaset"
	"github.com/coracle-dev/coracle/pkg/control/controllers/resourceclaim"
	"github.com/coracle-dev/coracle/pkg/control/controllers/resourcequota"
	"github.com/coracle-dev/coracle/pkg/control/controllers/roles"
	"github.com/coracle-dev/coracle/pkg/control/controllers/rootca"
	"github.com/coracle-dev/coracle/pkg/control/controllers/serviceaccount"
	"github.com/coracle-dev/coracle/pkg/control/controllers/servicecidr"
	"github.com/coracle-dev/coracle/pkg/control/controllers/statefulset"
	"github.com/coracle-dev/coracle/pkg/control/controllers/storagemigration"
	"github.com/coracle-dev/coracle/pkg/control/controllers/tainteviction"
	"github.com/coracle-dev/coracle/pkg/control/controllers/tokensecret"
	"github.com/coracle-dev/coracle/pkg/control/controllers/ttlafterfinished"
	"github.com/coracle-dev/coracle/pkg/control/controllers/volumebinding"
	"github.com/coracle-dev/coracle/pkg/control/controllers/volumesnapshot"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// All returns the reconcilers that cfg enables.
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
		storagemigration.New(cfg.Kinds),
		resourceclaim.New(),
		resourceclaim.NewRelease(),
		devicetaint.New(),
		devicetaint.NewStatus(),
	}
	list = append(list, cfg.More...)
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
