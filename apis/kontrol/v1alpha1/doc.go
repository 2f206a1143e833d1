// Package v1alpha1 is the API of Kontrol: the objects that many clusters should have, the objects last applied to
// each, and the objects that each has now.
//
// Its invariant: each kind has one writer, so that no writer waits for another. Writers other than users are in
// pkg/systems/kontrol.
//
//	Kind          Writer                              Content
//	Resource      users, through the API server       an object, and the clusters that should have it
//	AppliedState  the reconciler (controller)         what was last applied, per Resource and cluster
//	CurrentState  the watcher (controller)            what exists now, per Resource and cluster
//	Cluster       users                               how to reach a cluster
//	Bundle        users                               many objects; bundlecontroller creates Resources from them
//
// +kubebuilder:object:generate=true
// +groupName=kontrol.coracle.dev
package v1alpha1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
