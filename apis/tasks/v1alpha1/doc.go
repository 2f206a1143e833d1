// Package v1alpha1 is the API of tasks: containers that run once, to completion.
//
// It may import the Kubernetes API libraries, nothing of Coracle. Its invariant: a phase never moves back, and a
// finished task never changes.
//
//	Pending -> Scheduled -> Running -> Completed (exit code 0)
//	   |           |           `-----> Failed    (exit code not 0, or the node was lost)
//	   |           `-----------------> Failed    (the node went offline)
//	   `-----------------------------> Failed    (no node within timeoutSeconds)
//
// +kubebuilder:object:generate=true
// +groupName=tasks.coracle.dev
package v1alpha1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
