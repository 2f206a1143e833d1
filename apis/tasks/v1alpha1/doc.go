// Package v1alpha1 is the API of tasks: containers that run to completion, once, with retries, as arrays or on a
// schedule.
//
// Its invariant: a task reaches exactly one of the terminal phases, once, and its status never changes afterwards.
//
//	Pending -> Scheduled -> Running -> Completed (exit code 0)
//	   ^           |           |
//	   `-----------+-----------+-----> Failed    (status.reason and status.error say why)
//	     the next attempt
//
// +kubebuilder:object:generate=true
// +groupName=tasks.coracle.dev
package v1alpha1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
