package v1alpha1

import (
	_ "embed"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is kontrol.coracle.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "kontrol.coracle.dev", Version: "v1alpha1"}

// Source is the source text of the types of Clusters, ResourceSource of Resources, StateSource of AppliedStates and
// CurrentStates, BundleSourceText of Bundles. `kubectl explain` shows their comments.
var (
	//go:embed cluster.go
	Source string
	//go:embed resource.go
	ResourceSource string
	//go:embed states.go
	StateSource string
	//go:embed bundle.go
	BundleSourceText string
)

// Fields for field selectors besides the name: the id of Resources, and the Resource and cluster of states.
const (
	FieldID       = "status.id"
	FieldResource = "state.resource"
	FieldCluster  = "state.cluster"
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Cluster{}, &ClusterList{}, &Resource{}, &ResourceList{}, &Bundle{}, &BundleList{},
		&AppliedState{}, &AppliedStateList{}, &CurrentState{}, &CurrentStateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
