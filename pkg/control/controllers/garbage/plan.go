package garbage

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Owner is the state of an object that an owner reference names.
type Owner int

const (
	// Solid: the owner exists, or its kind is unknown.
	Solid Owner = iota
	// Absent: the owner is gone.
	Absent
	// Waiting: the owner is being deleted in the foreground and waits for its dependents.
	Waiting
)

// Observed is an object with its owners and dependents.
type Observed struct {
	Object metav1.Object
	// Owners are the states of the owner references, in order.
	Owners []Owner
	// Dependents is the number of objects it owns, and Blocking how many of them block its deletion.
	Dependents, Blocking int
	// Circle means that one of its dependents is deleted in the foreground as well.
	Circle bool
	// Early is how long its dependents may remain unknown after the collector's start. Plan waits meanwhile.
	Early time.Duration
}

// Action is what to do with the object.
type Action struct {
	// Wait until its dependents are known, at most this long.
	Wait time.Duration
	// Delete with this propagation. Empty: do not delete.
	Delete metav1.DeletionPropagation
	// Refs are the owner references to keep. Nil: leave them unchanged.
	Refs []metav1.OwnerReference
	// Unblock its own references before it is deleted, because it is part of a cycle.
	Unblock bool
	// Orphan its dependents, then remove the orphan finalizer.
	Orphan bool
	// Collect its dependents. Finish if no dependent blocks: remove the foreground finalizer.
	Collect, Finish bool
}

// waits reports whether the deletion of the object waits for its dependents.
func waits(o metav1.Object) bool {
	return slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents) ||
		slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

// Plan decides what to do with an object. It is a pure function.
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

func without(refs []metav1.OwnerReference, owner types.UID) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool { return r.UID == owner })
}
