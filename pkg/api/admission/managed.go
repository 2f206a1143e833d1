package admission

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/warning"
)

// restoring restores managed fields that a webhook or policy made invalid, with upstream's warning. Unlike
// upstream's NewManagedFieldsValidatingAdmissionController, it decodes them only if they changed. Decoding always
// took a sixth of a create.
type restoring struct{ reinvoking }

var (
	_ admission.MutationInterface   = restoring{}
	_ admission.ValidationInterface = restoring{}
)

func (r restoring) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	m, err := meta.Accessor(a.GetObject())
	if err != nil { // the object has no metadata
		return r.reinvoking.Admit(ctx, a, o)
	}
	before := managedOf(a.GetObject(), m)
	if err := r.reinvoking.Admit(ctx, a, o); err != nil {
		return err
	}
	if before.equal(managedOf(a.GetObject(), m)) {
		return nil
	}
	if err := managedfields.ValidateManagedFields(m.GetManagedFields()); err != nil {
		before.restore(a.GetObject(), m)
		warning.AddWarning(ctx, "",
			fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err.Error()))
	}
	return nil
}

// managed holds an object's managed fields. For objects without a Go type they are raw, because decoding them is
// expensive.
type managed struct {
	entries []metav1.ManagedFieldsEntry
	raw     []any
}

func managedOf(obj runtime.Object, m metav1.Object) managed {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		found, _, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", "managedFields")
		raw, _ := found.([]any)
		return managed{raw: raw}
	}
	return managed{entries: slices.Clone(m.GetManagedFields())}
}

// equal reports whether the managed fields are untouched. Raw fields that were replaced by equal values count as
// changed.
func (f managed) equal(o managed) bool {
	return slices.Equal(f.entries, o.entries) && len(f.raw) == len(o.raw) && (len(f.raw) == 0 || &f.raw[0] == &o.raw[0])
}

func (f managed) restore(obj runtime.Object, m metav1.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		m.SetManagedFields(f.entries)
		return
	}
	if metadata, ok := u.Object["metadata"].(map[string]any); ok {
		metadata["managedFields"] = f.raw
		if len(f.raw) == 0 {
			delete(metadata, "managedFields")
		}
	}
}
