// Package v1alpha1 is the API of workers: pools of pods that take messages from queues.
//
// Its invariant: a Worker that Validate accepts has a queue configuration that ParseQueue accepts, since the node's
// agent reads it from the pod's annotation.
//
// +kubebuilder:object:generate=true
// +groupName=workers.coracle.dev
package v1alpha1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
