package custom

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	calls "github.com/coracle-dev/coracle/pkg/api/webhook"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Webhooks resolves a webhook's service (namespace, name and port) to a URL that this process can reach.
type Webhooks = webhook.ServiceResolver

const (
	conversionTimeout = 30 * time.Second
	// maxPage and maxPageSize limit the number and the bytes (counted by sizeOf) of the objects in one conversion
	// request. This leaves room for objects that grow, within the response limit of pkg/api/webhook. A single larger
	// object is still sent.
	maxPage     = 1000
	maxPageSize = 2 << 20
)

// converters creates the converters of definitions.
type converters struct{ *conversion.CRConverterFactory }

func newConverters(webhooks Webhooks) (*converters, error) {
	if webhooks == nil {
		webhooks = webhook.NewDefaultServiceResolver()
	}
	f, err := conversion.NewCRConverterFactory(webhooks,
		func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
			return calls.BoundResponses(anonymous{})
		})
	if err != nil {
		return nil, err
	}
	return &converters{f}, nil
}

// anonymous configures clients of conversion webhooks without credentials.
type anonymous struct{}

func (anonymous) ClientConfigFor(string) (*restclient.Config, error) {
	return &restclient.Config{Timeout: conversionTimeout}, nil
}

func (a anonymous) ClientConfigForService(string, string, int) (*restclient.Config, error) {
	return a.ClientConfigFor("")
}

// newConvertor creates the definition's converter between versions. The converter does not modify its input.
func (d *definition) newConvertor() (runtime.ObjectConvertor, error) {
	factory, err := d.shared.converters()
	if err != nil {
		return nil, err
	}
	crd := d.crd
	if crd.Spec.Conversion == nil {
		crd = crd.DeepCopy()
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	}
	safe, _, err := factory.NewConverter(crd)
	return safe, err
}

// external converts an object of any version to v.
func (v *version) external(o runtime.Object) (client.Object, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is not a custom resource", o)
	}
	if u.GroupVersionKind() == v.gvk {
		return u, nil
	}
	convertor, err := v.of.convertor()
	if err != nil {
		return nil, err
	}
	out, err := convertor.ConvertToVersion(u, v.gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	return v.converted(out)
}

func (v *version) converted(out runtime.Object) (client.Object, error) {
	u, ok := out.(*unstructured.Unstructured)
	if !ok {
		return nil, errors.New("CR conversion failed")
	}
	if _, err := v.coerce(u, kind.Coercion{}); err != nil {
		return nil, err
	}
	return u, nil
}

// externalAll converts objects of other versions to v, with one webhook call per page.
func (v *version) externalAll(list []client.Object) ([]client.Object, error) {
	convertor, err := v.of.convertor()
	if err != nil {
		return nil, err
	}
	out := make([]client.Object, 0, len(list))
	for len(list) > 0 {
		page := firstPage(list)
		list = list[len(page):]
		in := &unstructured.UnstructuredList{Object: map[string]any{}}
		in.SetGroupVersionKind(v.gvk.GroupVersion().WithKind(v.of.names.ListKind))
		for _, o := range page {
			in.Items =
				append(in.Items, *o.(*unstructured.Unstructured)) //nolint:forcetypeassert // custom resources are nothing else
		}
		made, err := convertor.ConvertToVersion(in, v.gvk.GroupVersion())
		if err != nil {
			return nil, err
		}
		converted, ok := made.(*unstructured.UnstructuredList)
		if !ok || len(converted.Items) != len(page) {
			return nil, errors.New("CR conversion failed")
		}
		for i := range converted.Items {
			one, err := v.converted(&converted.Items[i])
			if err != nil {
				return nil, err
			}
			out = append(out, one)
		}
	}
	return out, nil
}

// firstPage returns the first objects of a non-empty list that one call converts, at least one.
func firstPage(list []client.Object) []client.Object {
	size := 0
	for i, o := range list {
		size += sizeOf(o.(*unstructured.Unstructured).Object) //nolint:forcetypeassert // custom resources are nothing else
		if i == maxPage || i > 0 && size > maxPageSize {
			return list[:i]
		}
	}
	return list
}

// sizeOf estimates the size of a value's JSON in bytes.
func sizeOf(v any) int {
	const punctuation, number = 4, 8
	switch v := v.(type) {
	case map[string]any:
		n := punctuation
		for k, v := range v {
			n += len(k) + punctuation + sizeOf(v)
		}
		return n
	case []any:
		n := punctuation
		for _, v := range v {
			n += punctuation + sizeOf(v)
		}
		return n
	case string:
		return len(v)
	}
	return number
}

// decodesAs reports whether objects in the store decode the same by d, a later state of the definition: the versions
// and their schemas are equal.
func (s *Set) decodesAs(d *definition) bool {
	is := s.definition
	if !bytes.Equal(is.packed.schemas, d.packed.schemas) || is.crd.UID != d.crd.UID ||
		len(is.versions) != len(d.versions) || is.crd.Spec.PreserveUnknownFields != d.crd.Spec.PreserveUnknownFields ||
		is.names.Kind != d.names.Kind || is.names.Plural != d.names.Plural || is.crd.Spec.Scope != d.crd.Spec.Scope {
		return false
	}
	for i, v := range is.versions {
		if v.spec.Name != d.versions[i].spec.Name {
			return false
		}
	}
	return true
}
