// Package v1alpha1 is the API of Kontrol: what many clusters should run, what was last applied to each, and what is
// there now.
//
// Its invariant: each kind has one writer, so that no writer waits for another.
//
//	Kind          Writer                                    Says
//	Resource      users, through the API server             what is desired, on which clusters
//	AppliedState  the reconciler (pkg/systems/kontrol/controller)    what was last applied, one per Resource and cluster
//	CurrentState  the watcher (pkg/systems/kontrol/controller)       what is there now, one per Resource and cluster
//	Cluster       users                                     how to reach a cluster
//	Bundle        users; pkg/systems/kontrol/bundlecontroller makes Resources of it
//
// +kubebuilder:object:generate=true
// +groupName=kontrol.coracle.dev
package v1alpha1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
