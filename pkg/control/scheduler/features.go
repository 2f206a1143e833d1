package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	nodefeatures "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/coracle-dev/coracle/pkg/base/version"
)

// clusterVersion is the version for which upstream's library says which features of nodes a pod needs.
var clusterVersion = utilversion.MustParse(version.Kubernetes)

// featuresFor returns the features that a pod needs of its node (KEP-5328): the usual pod none. A node of an earlier
// version may not have them.
func featuresFor(p *corev1.Pod) nodefeatures.FeatureSet {
	set, err := nodefeatures.DefaultFramework.InferForPodScheduling(&nodefeatures.PodInfo{Spec: &p.Spec}, clusterVersion)
	if err != nil {
		return nodefeatures.FeatureSet{} // there is a version
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
