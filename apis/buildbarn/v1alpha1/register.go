package v1alpha1

import (
	_ "embed"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is buildbarn.io/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "buildbarn.io", Version: "v1alpha1"}

// Source is the source text of the types that the parts share, PartsSource of the parts, FarmSource of farms.
// `kubectl explain` shows their comments.
var (
	//go:embed types.go
	Source string
	//go:embed parts.go
	PartsSource string
	//go:embed farm.go
	FarmSource string
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &BuildbarnScheduler{}, &BuildbarnSchedulerList{}, &BuildbarnWorker{},
		&BuildbarnWorkerList{},
		&BuildbarnStorage{}, &BuildbarnStorageList{}, &BuildbarnFrontend{}, &BuildbarnFrontendList{},
		&BuildbarnBrowser{}, &BuildbarnBrowserList{}, &Buildbarn{}, &BuildbarnList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
