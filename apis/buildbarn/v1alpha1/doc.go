// Package v1alpha1 is the API of Buildbarn: the parts of a farm that executes build actions remotely, and whole
// farms.
//
// Its invariant: Kubernetes accepts the names, labels and hosts of the children of every part that Validate
// accepts.
//
//	Kind                 Children (pkg/systems/buildbarn/controller)
//	BuildbarnScheduler   Deployment, Service, Ingress
//	BuildbarnWorker      Deployment
//	BuildbarnStorage     StatefulSet, headless Service, claims
//	BuildbarnFrontend    Deployment, Service
//	BuildbarnBrowser     Deployment, Service, Ingress
//	Buildbarn            the five kinds above, and the ConfigMap that they mount
//
// +kubebuilder:object:generate=true
// +groupName=buildbarn.io
package v1alpha1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
