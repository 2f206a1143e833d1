package cache

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func managed(fields string) *corev1.ConfigMap {
	f := &metav1.FieldsV1{}
	f.SetRawBytes([]byte(fields))
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: string([]byte("kubectl")), Operation: "Update", FieldsType: "FieldsV1", FieldsV1: f},
			},
		},
	}
}

// TestManagedFieldsAreHeldOnce: objects created the same way share managed fields. What they pointed to is not
// modified.
func TestManagedFieldsAreHeldOnce(t *testing.T) {
	var n interned
	a, b, other := managed(`{"f:data":{}}`), managed(`{"f:data":{}}`), managed(`{"f:immutable":{}}`)
	given, before := *b, b.ManagedFields[0].FieldsV1
	n.share("/registry/configmaps/work/a", a)
	n.share("/registry/configmaps/work/a", b)
	n.share("/registry/configmaps/work/a", other)
	require.Same(t, a.ManagedFields[0].FieldsV1, b.ManagedFields[0].FieldsV1)
	require.Same(t, &a.ManagedFields[0], &b.ManagedFields[0], "the whole list")
	require.NotSame(t, &a.ManagedFields[0], &given.ManagedFields[0])
	require.NotSame(t, &a.ManagedFields[0], &other.ManagedFields[0])
	require.Same(t, before, given.ManagedFields[0].FieldsV1)
	require.Equal(t, managed(`{"f:immutable":{}}`), other)
	require.Equal(t, managed(`{"f:data":{}}`), b)
}

// TestInternedIsBounded: objects that are all different do not exceed the limits.
func TestInternedIsBounded(t *testing.T) {
	var n interned
	for i := range 3 * maxInterned {
		n.share("/registry/configmaps/work/a", managed(fmt.Sprintf(`{"f:data":{"f:%d":{}}}`, i)))
		require.LessOrEqual(t, len(n.sets)+len(n.names), maxInterned)
	}
	large := make([]byte, maxInternedSet)
	for i := range 3 * maxInternedBytes / maxInternedSet {
		large[i%100]++
		n.share("/registry/configmaps/work/a", managed(string(large)))
		require.LessOrEqual(t, n.bytes, maxInternedBytes)
	}
}

// Namespaces and equal timestamps are shared, also for objects without managed fields.
func TestNamespacesAreHeldOnce(t *testing.T) {
	var n interned
	written := metav1.Unix(1, 0)
	made := func(at metav1.Time) *corev1.ConfigMap {
		o := managed(`{}`)
		o.Namespace, o.ManagedFields[0].Time = string([]byte("work")), &at
		return o
	}
	a, b, later, plain := made(written), made(written), made(metav1.Unix(2, 0)), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: string([]byte("work"))},
	}
	for _, o := range []*corev1.ConfigMap{a, b, later, plain} {
		n.share("/registry/configmaps/work/a", o)
		require.Equal(t, "work", o.Namespace)
		require.Same(t, unsafe.StringData(a.Namespace), unsafe.StringData(o.Namespace))
	}
	require.Same(t, a.ManagedFields[0].Time, b.ManagedFields[0].Time)
	require.Equal(t, metav1.Unix(2, 0), *later.ManagedFields[0].Time)
	require.Empty(t, plain.ManagedFields)
}

// The name of an object shares the memory of its key.
func TestNamesAreParts(t *testing.T) {
	var n interned
	key := "/registry/configmaps/work/a"
	o := managed(`{}`)
	for name, shared := range map[string]bool{"a": true, "other": false} {
		o.Name = string([]byte(name))
		n.share(key, o)
		require.Equal(t, name, o.Name)
		require.Equal(t, shared, unsafe.StringData(o.Name) == unsafe.StringData(key[len(key)-1:]))
	}
}
