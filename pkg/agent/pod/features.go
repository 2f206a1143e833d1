package pod

import (
	utilversion "k8s.io/apimachinery/pkg/util/version"
	nodefeatures "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/coracle-dev/coracle/pkg/version"
)

// DeclaredFeatures returns the features that this node has, for its status (KEP-5328). Without them the API server refuses changes of its pods that
// need one, and the scheduler places no pod here that does.
func DeclaredFeatures() []string {
	return nodefeatures.DefaultFramework.DiscoverNodeFeatures(&nodefeatures.NodeConfiguration{
		Version: utilversion.MustParse(version.Kubernetes),
		FeatureGates: types.FeatureGateMap{
			"InPlacePodVerticalScalingInitContainers": true,
		},
	})
}
