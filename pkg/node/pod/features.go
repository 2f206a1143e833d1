package pod

import (
	corev1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	nodefeatures "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/coracle-dev/coracle/pkg/base/version"
)

// honoured are the features that this package has, by their names in upstream's feature gates. A node does not take
// WebSockets from API servers (ExtendWebSocketsToKubelet): ours, like upstream's for a node that does not declare it,
// translates them to SPDY.
var honoured = types.FeatureGateMap{
	"InPlacePodLevelResourcesVerticalScaling": true,
	"InPlacePodVerticalScalingInitContainers": true,
	"RestartAllContainersOnContainerExits":    true,
}

var release = utilversion.MustParse(version.Kubernetes)

// DeclaredFeatures returns the features that this node has, for its status (KEP-5328), in order. Without them the API
// server refuses changes of its pods that need one, and the scheduler places no pod here that does.
func DeclaredFeatures() []string {
	return nodefeatures.DefaultFramework.DiscoverNodeFeatures(&nodefeatures.NodeConfiguration{
		Version: release, FeatureGates: honoured,
	})
}

// missingFeatures returns the features that a pod needs of its node and this one does not have, in order.
func missingFeatures(p *corev1.Pod) []string {
	f := nodefeatures.DefaultFramework
	needed, err := f.InferForPodScheduling(&nodefeatures.PodInfo{Spec: &p.Spec}, release)
	if err != nil || needed.IsEmpty() { // an error is that of a version that is nil
		return nil
	}
	match, err := f.MatchNodeFeatureSet(needed, f.TryMap(DeclaredFeatures()))
	if err != nil { // sets of two frameworks
		return nil
	}
	return match.UnsatisfiedRequirements
}
