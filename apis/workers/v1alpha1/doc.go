// Package v1alpha1 is the API of workers: pools of pods that receive messages from queues.
//
// Its invariant: ParseQueue accepts the queue configuration of every Worker that Validate accepts. The agent reads
// that configuration from an annotation of the pod.
//
// +kubebuilder:object:generate=true
// +groupName=workers.coracle.dev
package v1alpha1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
