package pod

import (
	corev1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	nodefeatures "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/coracle-dev/coracle/pkg/base/version"
)

// honoured are this package's features, named as upstream's gates. Without ExtendWebSocketsToKubelet, API servers
// translate WebSockets to SPDY for this node.
var honoured = types.FeatureGateMap{
	"InPlacePodLevelResourcesVerticalScaling": true,
	"InPlacePodVerticalScalingInitContainers": true,
	"RestartAllContainersOnContainerExits":    true,
}

var release = utilversion.MustParse(version.Kubernetes)

// DeclaredFeatures returns the features of this node in order, for its status (KEP-5328). The scheduler places pods by
// them, and the API server refuses pod updates that need a feature which the node does not declare.
func DeclaredFeatures() []string {
	return nodefeatures.DefaultFramework.DiscoverNodeFeatures(&nodefeatures.NodeConfiguration{
		Version: release, FeatureGates: honoured,
	})
}

func missingFeatures(p *corev1.Pod) []string {
	f := nodefeatures.DefaultFramework
	needed, err := f.InferForPodScheduling(&nodefeatures.PodInfo{Spec: &p.Spec}, release)
	if err != nil || needed.IsEmpty() { // only a nil version is an error
		return nil
	}
	match, err := f.MatchNodeFeatureSet(needed, f.TryMap(DeclaredFeatures()))
	if err != nil { // only sets of different frameworks are an error
		return nil
	}
	return match.UnsatisfiedRequirements
}
