package v1alpha1

import (
	_ "embed"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is workers.coracle.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "workers.coracle.dev", Version: "v1alpha1"}

// Source is the source text of the types. `kubectl explain` shows its comments.
//
//go:embed types.go
var Source string

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Worker{}, &WorkerList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
