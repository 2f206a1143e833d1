package admission

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/core"
)

// changes is a plugin that modifies the object.
type changes func(runtime.Object)

func (changes) Handles(admission.Operation) bool { return true }

func (f changes) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	f(a.GetObject())
	return nil
}

type recorded []string

func (r *recorded) AddWarning(_, text string) { *r = append(*r, text) }

// Whatever a plugin does to managed fields, the result and the warnings are the same as with upstream's controller.
func TestManagedFieldsAreRestored(t *testing.T) {
	entry := func(fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager:    "m",
			Operation:  "Update",
			APIVersion: "v1",
			FieldsType: "FieldsV1",
			FieldsV1:   metav1.NewFieldsV1(fields),
		}
	}
	objects := map[string]func() metav1.Object{
		"typed": func() metav1.Object { return &core.ConfigMap{} },
		"untyped": func() metav1.Object {
			return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}
		},
	}
	for name, f := range map[string]func(metav1.Object){
		"left alone": func(metav1.Object) {},
		"other":      func(o metav1.Object) { o.SetLabels(map[string]string{"a": "b"}) },
		"removed":    func(o metav1.Object) { o.SetManagedFields(nil) },
		"replaced":   func(o metav1.Object) { o.SetManagedFields([]metav1.ManagedFieldsEntry{entry(`{"f:other":{}}`)}) },
		"same":       func(o metav1.Object) { o.SetManagedFields(o.GetManagedFields()) },
		"broken":     func(o metav1.Object) { o.SetManagedFields([]metav1.ManagedFieldsEntry{entry(`{"data":`)}) },
		"no version": func(o metav1.Object) {
			e := entry(`{}`)
			e.FieldsType = ""
			o.SetManagedFields([]metav1.ManagedFieldsEntry{e})
		},
		"in place": func(o metav1.Object) {
			if c, ok := o.(*core.ConfigMap); ok && len(c.ManagedFields) > 0 {
				c.ManagedFields[0].FieldsType = "FieldsV2"
			}
		},
	} {
		for kind, make := range objects {
			for _, had := range [][]metav1.ManagedFieldsEntry{nil, {entry(`{"f:data":{}}`)}} {
				t.Run(name+"/"+kind, func(t *testing.T) {
					run := func(wrap func(admission.Interface) admission.MutationInterface) (metav1.Object, recorded) {
						o := make()
						if len(had) > 0 {
							o.SetManagedFields(append([]metav1.ManagedFieldsEntry(nil), had...))
						}
						var said recorded
						a := admission.NewAttributesRecord(o.(runtime.Object), nil, schema.GroupVersionKind{}, "", "",
							schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
						chain := changes(func(o runtime.Object) { f(o.(metav1.Object)) })
						require.NoError(t, wrap(chain).Admit(warning.WithWarningRecorder(t.Context(), &said), a, nil))
						return o, said
					}
					theirs, want := run(func(i admission.Interface) admission.MutationInterface {
						return fieldmanager.NewManagedFieldsValidatingAdmissionController(i).(admission.MutationInterface)
					})
					ours, got := run(func(i admission.Interface) admission.MutationInterface { return restoring{reinvoking{i}} })
					require.Equal(t, want, got)
					if name == "in place" && len(had) > 0 && kind == "typed" { // upstream warns, but keeps the field
						require.Equal(t, had, ours.GetManagedFields())
						return
					}
					require.Equal(t, theirs, ours)
				})
			}
		}
	}
}
