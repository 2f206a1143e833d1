package garbage

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Owner is the state of what an owner reference names.
type Owner int

const (
	// Solid: it exists, or its kind is unknown.
	Solid Owner = iota
	// Absent: it is gone.
	Absent
	// Waiting: it is being deleted, and waits for its dependents.
	Waiting
)

// Observed is an object with its owners and dependents.
type Observed struct {
	Object metav1.Object
	// Owners are the states of its owner references, in their order.
	Owners []Owner
	// Dependents is the number of objects it owns, Blocking how many of them block its deletion.
	Dependents, Blocking int
	// Circle is set if one of its dependents waits for its own dependents too.
	Circle bool
	// Early is how long its dependents may remain unknown, as the collector has just started. It decides nothing that
	// depends on them.
	Early time.Duration
}

// Action is what to do with the object.
type Action struct {
	// Wait until its dependents are known, at most that long.
	Wait time.Duration
	// Delete with this propagation; empty: do not.
	Delete metav1.DeletionPropagation
	// Refs are the owner references to keep; nil: leave them.
	Refs []metav1.OwnerReference
	// Unblock its own references first, as it is part of a cycle.
	Unblock bool
	// Orphan its dependents, then drop that finalizer.
	Orphan bool
	// Collect its dependents or, if no blocking dependent is left, finish: drop the foreground finalizer.
	Collect, Finish bool
}

// waits reports whether the object's deletion waits for its dependents.
func waits(o metav1.Object) bool {
	return slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents) ||
		slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

// Plan decides.
func Plan(o Observed) Action {
	if o.Early > 0 {
		return Action{Wait: o.Early}
	}
	if o.Object.GetDeletionTimestamp() != nil {
		switch {
		case slices.Contains(o.Object.GetFinalizers(), metav1.FinalizerOrphanDependents):
			return Action{Orphan: true}
		case slices.Contains(o.Object.GetFinalizers(), metav1.FinalizerDeleteDependents):
			return Action{Collect: o.Blocking > 0, Finish: o.Blocking == 0}
		}
		return Action{}
	}
	refs := o.Object.GetOwnerReferences()
	if len(refs) == 0 {
		return Action{}
	}
	kept := []metav1.OwnerReference{}
	waiting := false
	for i, ref := range refs {
		switch o.Owners[i] {
		case Solid:
			kept = append(kept, ref)
		case Waiting:
			waiting = true
		}
	}
	switch {
	case len(kept) == len(refs):
		return Action{}
	case len(kept) > 0:
		return Action{Refs: kept}
	case waiting && o.Dependents > 0:
		return Action{Delete: metav1.DeletePropagationForeground, Unblock: o.Circle}
	case slices.Contains(o.Object.GetFinalizers(), metav1.FinalizerOrphanDependents):
		return Action{Delete: metav1.DeletePropagationOrphan}
	case slices.Contains(o.Object.GetFinalizers(), metav1.FinalizerDeleteDependents):
		return Action{Delete: metav1.DeletePropagationForeground}
	}
	return Action{Delete: metav1.DeletePropagationBackground}
}

// without returns the references except those to one owner.
func without(refs []metav1.OwnerReference, owner types.UID) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool { return r.UID == owner })
}
