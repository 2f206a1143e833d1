package client

import ctrl "sigs.k8s.io/controller-runtime/pkg/client"

// WithoutFinalizer is a Delete option for the owner of a finalizer: the in-process client removes the finalizer in the
// same write. Other clients ignore the option, so the owner must still remove the finalizer from objects being deleted.
type WithoutFinalizer string

// ApplyToDelete implements controller-runtime's DeleteOption.
func (WithoutFinalizer) ApplyToDelete(*ctrl.DeleteOptions) {}

// FinalizerOf returns the finalizer of a WithoutFinalizer option, or "".
func FinalizerOf(opts []ctrl.DeleteOption) string {
	for _, o := range opts {
		if f, ok := o.(WithoutFinalizer); ok {
			return string(f)
		}
	}
	return ""
}
