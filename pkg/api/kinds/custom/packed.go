package custom

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// packed is a definition in the form that the cache and its rows hold. The schemas are compressed: they are nearly
// all of a definition, take ten times their size as Go types, and are rarely read. It is immutable, except for the
// metadata of a shallow copy.
type packed struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	spec    apiextensionsv1.CustomResourceDefinitionSpec // versions without their schemas
	status  apiextensionsv1.CustomResourceDefinitionStatus
	schemas []byte // compressed JSON list with the schema of each version, or null
}

var _ client.Object = (*packed)(nil)

// maxSchemas limits the unpacked size of a definition's schemas, in bytes: several times the maximum request.
const maxSchemas = 64 << 20

// pack returns a definition in packed form, or any other object unchanged. The result shares memory with o.
func pack(o client.Object) client.Object {
	crd, ok := o.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return o
	}
	p, err := packDefinition(crd)
	if err != nil {
		return o // usable, only larger
	}
	return p
}

func packDefinition(crd *apiextensionsv1.CustomResourceDefinition) (*packed, error) {
	p := &packed{TypeMeta: crd.TypeMeta, ObjectMeta: crd.ObjectMeta, spec: crd.Spec, status: crd.Status}
	p.spec.Versions = slices.Clone(crd.Spec.Versions)
	list := make([]*apiextensionsv1.CustomResourceValidation, len(p.spec.Versions))
	for i := range p.spec.Versions {
		list[i], p.spec.Versions[i].Schema = p.spec.Versions[i].Schema, nil
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	p.schemas = bytes.Clone(b.Bytes())
	return p, nil
}

// unpack reverses pack. Other objects are returned unchanged. The result shares all memory except the schemas with
// o.
func unpack(o client.Object) client.Object {
	if p, ok := o.(*packed); ok {
		return p.whole()
	}
	return o
}

// whole returns the definition with its schemas.
func (p *packed) whole() *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   p.TypeMeta,
		ObjectMeta: p.ObjectMeta,
		Spec:       p.spec,
		Status:     p.status,
	}
	crd.Spec.Versions = slices.Clone(p.spec.Versions)
	list, err := p.unpackSchemas()
	if err != nil {
		panic(fmt.Sprintf("definition %s: %v", p.Name, err)) // this process packed them
	}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = list[i]
	}
	return crd
}

func (p *packed) unpackSchemas() (list []*apiextensionsv1.CustomResourceValidation, err error) {
	text, err := bounded.All(flate.NewReader(bytes.NewReader(p.schemas)), maxSchemas)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if len(list) != len(p.spec.Versions) {
		return nil, fmt.Errorf("%d schemas of %d versions", len(list), len(p.spec.Versions))
	}
	return list, nil
}

func (p *packed) DeepCopyObject() runtime.Object {
	out := *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	p.spec.DeepCopyInto(&out.spec)
	p.status.DeepCopyInto(&out.status)
	return &out
}

// Size returns the approximate size of the object in protobuf, in bytes.
func (p *packed) Size() int {
	slim := apiextensionsv1.CustomResourceDefinition{ObjectMeta: p.ObjectMeta, Spec: p.spec, Status: p.status}
	return slim.Size() + len(p.schemas)
}

// MarshalJSON encodes the whole definition like upstream's type.
func (p *packed) MarshalJSON() ([]byte, error) { return json.Marshal(p.whole()) }
