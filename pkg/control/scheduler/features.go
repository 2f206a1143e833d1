package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	nodefeatures "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/coracle-dev/coracle/pkg/base/version"
)

// clusterVersion is the version for which upstream's library infers the features that a pod requires.
var clusterVersion = utilversion.MustParse(version.Kubernetes)

// featuresFor returns the node features that a pod requires (KEP-5328). Older nodes may lack them.
func featuresFor(p *corev1.Pod) nodefeatures.FeatureSet {
	set, err := nodefeatures.DefaultFramework.InferForPodScheduling(&nodefeatures.PodInfo{Spec: &p.Spec}, clusterVersion)
	if err != nil {
		return nodefeatures.FeatureSet{} // fails only without a version
	}
	return set
}

func featuresOf(n *corev1.Node) nodefeatures.FeatureSet {
	return nodefeatures.DefaultFramework.TryMap(n.Status.DeclaredFeatures)
}

func prepareFeatures(c *cycle) bool { return !c.features.IsEmpty() }

func hasFeatures(c *cycle, n *nodeInfo) bool {
	ok, err := c.features.IsSubset(n.features)
	return ok && err == nil
}
