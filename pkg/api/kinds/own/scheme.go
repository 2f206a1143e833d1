package own

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Scheme returns a scheme with the Go types of rows, and at least the types of client.Scheme. It must not be modified.
func Scheme(rows []*kind.Resource) *runtime.Scheme {
	known := client.Scheme()
	var more *runtime.Scheme
	for _, r := range rows {
		if r.Unstructured() || known.Recognizes(r.GroupVersionKind) {
			continue
		}
		if more == nil {
			more = client.NewScheme()
		}
		more.AddKnownTypeWithName(r.GroupVersionKind, r.New())
		more.AddKnownTypeWithName(r.GroupVersion().WithKind(r.Kind+"List"), r.NewList())
		metav1.AddToGroupVersion(more, r.GroupVersion())
	}
	return cmp.Or(more, known)
}
