package client

import ctrl "sigs.k8s.io/controller-runtime/pkg/client"

// WithoutFinalizer is an option of Delete for the owner of a finalizer: the in-process client removes the finalizer in
// the same write. Other clients ignore the option, so the caller must still remove the finalizer of an object that it
// sees being deleted.
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
