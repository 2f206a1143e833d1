// Package custom creates the rows of custom resources from their CustomResourceDefinitions
// (apiextensions.k8s.io/v1), and the row of CustomResourceDefinition itself. Schemas, pruning, defaults, validation,
// CEL rules, columns and conversion are upstream's (k8s.io/apiextensions-apiserver).
//
// Its invariants: an unused row is cheap, whatever the size of its schema; and no definition can prevent other
// definitions from being served.
//
// The cache and the rows hold schemas compressed (packed). As Go types, 100 definitions of 24 KB take 58 MB more, and
// platforms on Kubernetes bring a thousand. Readers outside the cache get upstream's type.
package custom

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// scheme returns the scheme with the versions of CustomResourceDefinition.
var scheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	return s
})

// typer implements runtime.ObjectTyper with the scheme.
type typer struct{}

func (typer) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return scheme().ObjectKinds(o)
}

func (typer) Recognizes(gvk schema.GroupVersionKind) bool { return scheme().Recognizes(gvk) }

// Definitions creates the row of CustomResourceDefinition v1. As upstream, definitions are stored as JSON. It can
// also decode v1beta1, which a kube-apiserver may have stored.
func Definitions() *kind.Resource {
	// Upstream has the field label metadata.namespace, although definitions are cluster-scoped.
	fields := kind.MetaFields()
	r := definitions(apiextensionsv1.SchemeGroupVersion, func() client.Object {
		return &apiextensionsv1.CustomResourceDefinition{}
	})
	r.NewList = func() client.ObjectList { return &apiextensionsv1.CustomResourceDefinitionList{} }
	r.Singular, r.ShortNames, r.Categories = "customresourcedefinition", []string{"crd", "crds"}, []string{
		"api-extensions",
	}
	r.Proto, r.StoredJSON = true, true
	r.Strategy = checked{customresourcedefinition.NewStrategy(typer{})}
	r.Status = customresourcedefinition.NewStatusStrategy(typer{})
	r.Fields, r.FieldNames, r.Label = fields.Set, fields.Names, runtime.DefaultMetaV1FieldSelectorConversion
	table := tableconvertor.New()
	r.Table = &kind.Printer{Row: r, Print: func(o client.Object, headers bool) (*metav1.Table, error) {
		in, err := r.Internal(o)
		if err != nil {
			return nil, err
		}
		return table.ConvertToTable(context.Background(), in, &metav1.TableOptions{NoHeaders: !headers})
	}}
	r.Pack, r.Unpack = pack, unpack
	r.Most = MaxDefinitions
	r.BeginDelete = beginDelete
	r.Managers = definitionManagers
	r.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	r.Also = []*kind.Resource{
		definitions(apiextensionsv1beta1.SchemeGroupVersion, func() client.Object {
			return &apiextensionsv1beta1.CustomResourceDefinition{}
		}),
	}
	return r
}

// MaxDefinitions limits the definitions of a cluster. Each is a kind with a cache, routes, discovery and documents,
// which takes 100 to 300 KB with a schema of common size.
const MaxDefinitions = 5000

// definitions creates the part of the row that all versions share.
func definitions(gv schema.GroupVersion, make func() client.Object) *kind.Resource {
	return &kind.Resource{
		GroupVersionKind: gv.WithKind("CustomResourceDefinition"), Plural: "customresourcedefinitions",
		Keys:    "apiextensions.k8s.io/customresourcedefinitions",
		New:     make,
		Default: func(o runtime.Object) { scheme().Default(o) },
		Internal: func(o client.Object) (runtime.Object, error) {
			return scheme().UnsafeConvertToVersion(unpack(o), apiextensions.SchemeGroupVersion)
		},
		External: func(o runtime.Object) (client.Object, error) {
			out, err := scheme().UnsafeConvertToVersion(o, gv)
			if err != nil {
				return nil, err
			}
			external, ok := out.(client.Object)
			if !ok {
				return nil, fmt.Errorf("%T has no metadata", out)
			}
			external.GetObjectKind().SetGroupVersionKind(gv.WithKind("CustomResourceDefinition"))
			return external, nil
		},
	}
}

// beginDelete adds the finalizer that keeps a definition until its objects are deleted, and the condition
// Terminating.
func beginDelete(o runtime.Object) {
	crd, ok := o.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return
	}
	if !apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(crd.Finalizers, apiextensions.CustomResourceCleanupFinalizer)
	}
	apiextensions.SetCRDCondition(crd, apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.Terminating, Status: apiextensions.ConditionTrue, Reason: "InstanceDeletionPending",
		LastTransitionTime: metav1.Now().Rfc3339Copy(),
		Message:            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
}
