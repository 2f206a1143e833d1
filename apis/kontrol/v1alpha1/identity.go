package v1alpha1

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/json"
)

// header has the fields that identify the object of a template.
//
// +kubebuilder:object:generate=false
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

// StateTerminating is shown for Resources and Bundles that are being deleted. It is never stored.
const StateTerminating = "Terminating"

// State returns the state of a Resource. It is OutOfSync until the latest generation has been observed.
func (r *Resource) State() string {
	switch {
	case r.DeletionTimestamp != nil:
		return StateTerminating
	case r.Status.ObservedGeneration != r.Generation:
		return string(StateOutOfSync)
	}
	return string(r.Status.State)
}

// TargetOf returns the identity of a Resource's object. Fields that cannot be read are empty.
func TargetOf(r *Resource) Target {
	var h header
	_ = json.UnmarshalCaseSensitivePreserveInts(r.Spec.Template.Raw, &h) // validated before
	return Target{APIVersion: h.APIVersion, Kind: h.Kind, Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}
}

// WaveOf returns the wave in which a Resource is applied; 0 by default.
func WaveOf(r *Resource) int {
	n, _ := strconv.Atoi(r.Annotations[AnnotationWave]) // validated before
	return n
}

// StateName returns the name of the states of a Resource on a cluster.
func StateName(resource, cluster string) string { return resource + "." + cluster }

// SplitStateName returns the Resource and cluster from a state's name.
func SplitStateName(name string) (resource, cluster string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return name, ""
	}
	return name[:i], name[i+1:]
}

// Group returns the API group of the object.
func (t Target) Group() string {
	gv, _ := schema.ParseGroupVersion(t.APIVersion) // validated before
	return gv.Group
}

// String returns kind/name or kind/namespace/name.
func (t Target) String() string {
	if t.Namespace != "" {
		return t.Kind + "/" + t.Namespace + "/" + t.Name
	}
	return t.Kind + "/" + t.Name
}
