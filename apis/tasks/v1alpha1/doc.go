// Package v1alpha1 is the API of tasks: containers that run once, to an end.
// It is Podling's model (seeds/4-podling) as a Kubernetes kind.
//
// It may import the Kubernetes API libraries, nothing of Coracle. Its
// invariant: a phase never moves back, and a task that ended never changes.
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
