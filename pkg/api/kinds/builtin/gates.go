package builtin

import (
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
)

// setGates sets the feature gates that upstream's strategies read, where they differ from upstream's defaults. It
// must be called before any row is used.
func setGates() {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		// Gang scheduling (KEP-4671). Without the gate, spec.schedulingGroup of pods is dropped.
		string(features.GenericWorkload): true,
	}); err != nil {
		panic(err) // a gate that this release does not have
	}
}
