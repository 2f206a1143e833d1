package kind

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"reflect"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects are stored as by upstream's kube-apiserver: kinds with Proto as the magic number "k8s\0" and a
// runtime.Unknown that wraps the object's message, others as JSON. In both, resourceVersion and selfLink are empty;
// the resourceVersion is the revision of the key.

var protoMagic = []byte("k8s\x00")

// ErrDecode means that the stored bytes are not an object of the kind.
var ErrDecode = errors.New("cannot decode")

type protoMessage interface {
	Reset()
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

// Encode returns the bytes to store for an object of the served version. It does not modify obj.
func (r *Resource) Encode(obj client.Object) ([]byte, error) {
	if obj.GetResourceVersion() != "" || obj.GetSelfLink() != "" ||
		obj.GetObjectKind().GroupVersionKind() != r.GroupVersionKind {
		obj = Shallow(obj)
		obj.SetResourceVersion("")
		obj.SetSelfLink("")
		obj.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind)
	}
	if r.Proto && !r.StoredJSON {
		m, ok := obj.(protoMessage)
		if !ok {
			return nil, fmt.Errorf("encode %s: %T has no protobuf form", r.GR(), obj)
		}
		return encodeUnknown(r.GroupVersionKind.GroupVersion().String(), r.Kind, m)
	}
	b, err := MarshalJSON(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.GR(), err)
	}
	return b, nil
}

// Decode decodes stored bytes in either encoding. It converts objects of other known versions to this row's version;
// with PerVersion, objects keep the version in which they were stored. The object has TypeMeta, and rev as its
// resourceVersion. Errors match ErrDecode.
func (r *Resource) Decode(value []byte, rev int64) (client.Object, error) {
	obj, as, err := r.unmarshal(value)
	if err != nil {
		return nil, fmt.Errorf("%w stored %s: %w", ErrDecode, r.GR(), err)
	}
	if as.Coerce != nil {
		if _, err := as.Coerce(obj, Coercion{Stored: true}); err != nil {
			return nil, fmt.Errorf("%w stored %s: %w", ErrDecode, r.GR(), err)
		}
	}
	if as.Default != nil {
		as.Default(obj) // the writer may be older than some fields
	}
	if as != r && !r.PerVersion {
		if obj, err = as.convert(obj, r); err != nil {
			return nil, fmt.Errorf("%w stored %s: from %s: %w", ErrDecode, r.GR(), as.Version, err)
		}
	}
	obj.SetResourceVersion(strconv.FormatInt(rev, 10))
	if !r.PerVersion {
		as = r
	}
	obj.GetObjectKind().SetGroupVersionKind(as.GroupVersionKind)
	return obj, nil
}

// unmarshal returns the object in its stored version, and the row of that version.
func (r *Resource) unmarshal(value []byte) (client.Object, *Resource, error) {
	if raw, ok := bytes.CutPrefix(value, protoMagic); ok {
		var u runtime.Unknown
		if err := u.Unmarshal(raw); err != nil {
			return nil, nil, err
		}
		if u.ContentType != "" && u.ContentType != runtime.ContentTypeProtobuf || u.ContentEncoding != "" {
			return nil, nil, fmt.Errorf("content type %q, encoding %q inside the envelope", u.ContentType, u.ContentEncoding)
		}
		as, err := r.version(u.APIVersion, u.Kind)
		if err != nil {
			return nil, nil, err
		}
		obj := as.New()
		m, ok := obj.(protoMessage)
		if !ok {
			return nil, nil, fmt.Errorf("%T has no protobuf form", obj)
		}
		return obj, as, m.Unmarshal(u.Raw)
	}
	obj := r.New()
	if err := json.Unmarshal(value, obj); err != nil {
		return nil, nil, err
	}
	as, err := r.version(obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind())
	if err != nil || as == r || r.PerVersion {
		return obj, as, err
	}
	obj = as.New()
	return obj, as, json.Unmarshal(value, obj)
}

func (r *Resource) version(apiVersion, k string) (*Resource, error) {
	wantVersion, want := r.GroupVersionKind.ToAPIVersionAndKind()
	if apiVersion == wantVersion && k == want {
		return r, nil
	}
	for _, o := range r.Also {
		if v, kind := o.GroupVersionKind.ToAPIVersionAndKind(); apiVersion == v && k == kind {
			return o, nil
		}
	}
	return nil, fmt.Errorf("it is a %s %s, not a %s %s", apiVersion, k, wantVersion, want)
}

// convert converts an object to the version of another row of the same resource. The result may share memory with obj.
func (r *Resource) convert(obj client.Object, to *Resource) (client.Object, error) {
	in, err := r.Internal(obj)
	if err != nil {
		return nil, err
	}
	out, err := to.External(in)
	if err != nil {
		return nil, err
	}
	out.GetObjectKind().SetGroupVersionKind(to.GroupVersionKind)
	return out, nil
}

// Serves reports whether a cached object has the version of this row.
func (r *Resource) Serves(obj client.Object) bool {
	if r.PerVersion {
		return obj.GetObjectKind().GroupVersionKind() == r.GroupVersionKind
	}
	return r.StoredAs == nil
}

// From converts a cached object to the version of this row. It does not modify obj; the result may share memory with
// it.
func (r *Resource) From(obj client.Object) (client.Object, error) {
	if r.Serves(obj) {
		return obj, nil
	}
	if r.PerVersion {
		return r.External(obj)
	}
	return r.StoredAs.convert(Shallow(obj), r)
}

func (r *Resource) message(obj client.Object) (m protoMessage, ok bool) {
	if !r.Proto {
		return nil, false
	}
	if r.Unpack != nil {
		obj = r.Unpack(obj)
	}
	m, ok = obj.(protoMessage)
	return m, ok
}

// Message returns the object's protobuf message without the envelope, or nil if the kind has none.
func (r *Resource) Message(obj client.Object) ([]byte, error) { return r.MessageIn(nil, obj) }

// MessageIn is Message with scratch as the buffer, if it is large enough.
func (r *Resource) MessageIn(scratch []byte, obj client.Object) ([]byte, error) {
	m, ok := r.message(obj)
	if !ok {
		return nil, nil
	}
	size := m.Size()
	if size > cap(scratch) {
		scratch = make([]byte, size)
	}
	b := scratch[:size]
	n, err := m.MarshalToSizedBuffer(b)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.GR(), err)
	}
	return b[len(b)-n:], nil
}

// MessageSize is the length of Message.
func (r *Resource) MessageSize(obj client.Object) int {
	m, ok := r.message(obj)
	if !ok {
		return 0
	}
	return m.Size()
}

// Shallow copies an object's top level and metadata, so that TypeMeta and plain metadata fields of the copy can be set
// without changing obj.
func Shallow(obj client.Object) client.Object {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		top := make(map[string]any, len(u.Object))
		maps.Copy(top, u.Object)
		if meta, ok := top["metadata"].(map[string]any); ok {
			m := make(map[string]any, len(meta))
			maps.Copy(m, meta)
			top["metadata"] = m
		}
		return &unstructured.Unstructured{Object: top}
	}
	v := reflect.ValueOf(obj).Elem()
	c := reflect.New(v.Type())
	c.Elem().Set(v)
	return c.Interface().(client.Object)
}

// AtRevision returns a shallow copy of obj with rev as its resourceVersion.
func AtRevision(obj client.Object, rev int64) client.Object {
	c := Shallow(obj)
	c.SetResourceVersion(strconv.FormatInt(rev, 10))
	return c
}

// encodeUnknown writes the magic number and the envelope around m in one allocation. The result equals the output of
// upstream's serializer, including empty contentEncoding and contentType.
func encodeUnknown(apiVersion, k string, m protoMessage) ([]byte, error) {
	raw := m.Size()
	typ := 1 + varintLen(len(apiVersion)) + len(apiVersion) + 1 + varintLen(len(k)) + len(k)
	size := len(protoMagic) + 1 + varintLen(typ) + typ + 1 + varintLen(raw) + raw + 4
	b := make([]byte, 0, size)
	b = append(b, protoMagic...)
	b = appendVarint(append(b, 0x0a), typ)
	b = append(appendVarint(append(b, 0x0a), len(apiVersion)), apiVersion...)
	b = append(appendVarint(append(b, 0x12), len(k)), k...)
	b = appendVarint(append(b, 0x12), raw)
	n, err := m.MarshalToSizedBuffer(b[len(b) : len(b)+raw])
	if err == nil && n != raw {
		err = fmt.Errorf("%d bytes instead of %d", n, raw)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k, err)
	}
	return append(b[:len(b)+raw], 0x1a, 0, 0x22, 0), nil
}

func varintLen(n int) int { return (bits.Len64(uint64(n)|1) + 6) / 7 }

func appendVarint(b []byte, n int) []byte {
	v := uint64(n)
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}
