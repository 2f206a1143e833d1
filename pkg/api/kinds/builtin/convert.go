package builtin

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// object constrains a type parameter to pointers to T that implement client.Object.
type object[T any] interface {
	*T
	client.Object
}

type list[T any] interface {
	*T
	client.ObjectList
}

// row returns the row of a Kubernetes kind, with upstream's strategy, defaults and conversions.
func row[T, L any, P object[T], PL list[L]](group schema.GroupVersion, plural, singular string, s kind.Strategy,
	fields kind.Selectable) *kind.Resource {
	gvk := group.WithKind(reflect.TypeFor[T]().Name())
	if !s.NamespaceScoped() {
		fields = fields.ClusterScoped()
	}
	internal := schema.GroupVersion{Group: group.Group, Version: runtime.APIVersionInternal}
	r := &kind.Resource{
		GroupVersionKind: gvk,
		Plural:           plural,
		Singular:         singular,
		Namespaced:       s.NamespaceScoped(),
		Keys:             plural,
		Proto:            true,
		New:              func() client.Object { return P(new(T)) },
		NewList:          func() client.ObjectList { return PL(new(L)) },
		Strategy:         s,
		Fields:           fields.Set,
		FieldNames:       fields.Names,
		Label: func(field, value string) (string, string, error) {
			return legacyscheme.Scheme.ConvertFieldLabel(gvk, field, value)
		},
		Default: legacyscheme.Scheme.Default,
		Internal: func(o client.Object) (runtime.Object, error) {
			return legacyscheme.Scheme.UnsafeConvertToVersion(o, internal)
		},
		External: func(o runtime.Object) (client.Object, error) {
			out, err := legacyscheme.Scheme.UnsafeConvertToVersion(o, group)
			if err != nil {
				return nil, err
			}
			external, ok := out.(client.Object)
			if !ok {
				return nil, fmt.Errorf("%T has no metadata", out)
			}
			return external, nil
		},
		Verbs: allVerbs,
	}
	r.Table = printer(r)
	r.Deprecated = deprecated(r.New(), gvk)
	return r
}

// deprecated returns upstream's warning if the kind is deprecated in the emulated Kubernetes release, otherwise "".
func deprecated(o client.Object, gvk schema.GroupVersionKind) string {
	major, minor, err := deprecation.MajorMinor(version.Info())
	if err != nil || !deprecation.IsDeprecated(o, major, minor) {
		return ""
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return deprecation.WarningMessage(o)
}
