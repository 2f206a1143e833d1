package builtin

import (
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
)

// setGates sets the feature gates by which upstream's strategies decide what they keep and accept, where this is not as
// upstream's defaults. It is called before any row is used.
func setGates() {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		// Pods that are scheduled together (KEP-4671), whose spec.schedulingGroup is dropped otherwise.
		string(features.GenericWorkload): true,
	}); err != nil {
		panic(err) // the gates are upstream's of this release
	}
}
