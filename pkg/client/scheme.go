package client

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Scheme holds the types of client-go and ours. It is made once, when first asked for; do not add to it.
var Scheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(tasks.AddToScheme(s))
	return s
})

// Mapper maps between the kinds and resources of the table, without asking a server.
func Mapper(t *kind.Table) meta.RESTMapper {
	var versions []schema.GroupVersion
	for _, r := range t.All() {
		if v := r.GroupVersionKind.GroupVersion(); !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	m := meta.NewDefaultRESTMapper(versions)
	for _, r := range t.All() {
		scope := meta.RESTScopeRoot
		if r.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		singular := r.GVR()
		singular.Resource = r.Singular
		m.AddSpecific(r.GroupVersionKind, r.GVR(), singular, scope)
	}
	return m
}
