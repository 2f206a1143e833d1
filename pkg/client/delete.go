package client

import ctrl "sigs.k8s.io/controller-runtime/pkg/client"

// WithoutFinalizer is an option of Delete for whoever put the finalizer there: the in-process client removes it in the
// same write. Others ignore the option, so the caller must remove the finalizer of an object that it sees being
// deleted, as it must for those that somebody else deletes.
type WithoutFinalizer string

// ApplyToDelete implements controller-runtime's DeleteOption.
func (WithoutFinalizer) ApplyToDelete(*ctrl.DeleteOptions) {}

// FinalizerOf returns the finalizer that the options of a Delete name; "" without one.
func FinalizerOf(opts []ctrl.DeleteOption) string {
	for _, o := range opts {
		if f, ok := o.(WithoutFinalizer); ok {
			return string(f)
		}
	}
	return ""
}
