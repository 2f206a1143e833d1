package registry

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// versions converts the objects of a kind for upstream's field manager: unstructured ones to their type, and typed ones
// between served versions, because each managed fields entry is kept in the version of the request that wrote it.
type versions struct {
	*kind.Resource
	table *kind.Table
}

func (v versions) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk != v.GroupVersionKind {
		return nil, runtime.NewNotRegisteredErrForKind("registry", gvk)
	}
	o := v.Resource.New()
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return o, nil
}

func (v versions) Default(o runtime.Object) {
	if v.Resource.Default != nil {
		v.Resource.Default(o)
	}
}

func (v versions) row(gvk schema.GroupVersionKind) *kind.Resource {
	if gvk == v.GroupVersionKind {
		return v.Resource
	}
	if r := v.table.ByGVK(gvk); r != nil && r.Stored() == v.Stored() {
		return r
	}
	return nil
}

func (v versions) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	gv, ok := target.(schema.GroupVersion)
	if !ok {
		return nil, runtime.NewNotRegisteredGVKErrForTarget("registry", v.GroupVersionKind, target)
	}
	to := v.row(gv.WithKind(v.Kind))
	if to == nil {
		return nil, runtime.NewNotRegisteredErrForKind("registry", gv.WithKind(v.Kind))
	}
	from := v.Resource
	if u, ok := in.(*unstructured.Unstructured); ok {
		if from = v.row(u.GroupVersionKind()); from == nil {
			return nil, runtime.NewNotRegisteredErrForKind("registry", u.GroupVersionKind())
		}
		typed := from.New()
		if _, ok := typed.(*unstructured.Unstructured); !ok {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			in = typed
		}
	} else if gvk := in.GetObjectKind().GroupVersionKind(); gvk != v.GroupVersionKind {
		if other := v.row(gvk); other != nil {
			from = other
		}
	}
	if from == to {
		in.GetObjectKind().SetGroupVersionKind(to.GroupVersionKind)
		return in, nil
	}
	o, ok := in.DeepCopyObject().(client.Object)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T has no metadata", in))
	}
	internal, err := from.Internal(o)
	if err != nil {
		return nil, err
	}
	out, err := to.External(internal)
	if err != nil {
		return nil, err
	}
	out.GetObjectKind().SetGroupVersionKind(to.GroupVersionKind)
	return out, nil
}

func (v versions) Convert(_, _, _ any) error {
	return fmt.Errorf("%s is converted as a whole", v.Kind)
}

func (v versions) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// oneVersion is the converter for a subresource whose kind exists in one version only. It only converts
// unstructured objects to their Go type.
type oneVersion struct {
	gvk  schema.GroupVersionKind
	make func() runtime.Object
}

func (v oneVersion) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk != v.gvk {
		return nil, runtime.NewNotRegisteredErrForKind("registry", gvk)
	}
	o := v.make()
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return o, nil
}

func (v oneVersion) Default(runtime.Object) {}

func (v oneVersion) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	if _, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{v.gvk}); !ok {
		return nil, runtime.NewNotRegisteredGVKErrForTarget("registry", v.gvk, gv)
	}
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		in.GetObjectKind().SetGroupVersionKind(v.gvk)
		return in, nil
	}
	if u.GroupVersionKind() != v.gvk {
		return nil, runtime.NewNotRegisteredErrForKind("registry", u.GroupVersionKind())
	}
	out := v.make()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

func (v oneVersion) Convert(_, _, _ any) error {
	return fmt.Errorf("%s is served in one version", v.gvk.Kind)
}

func (v oneVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
