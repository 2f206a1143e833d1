package cache

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func managed(fields string) *corev1.ConfigMap {
	f := &metav1.FieldsV1{}
	f.SetRawBytes([]byte(fields))
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: string([]byte("kubectl")), Operation: "Update", FieldsType: "FieldsV1", FieldsV1: f}}}}
}

// TestManagedFieldsAreHeldOnce: objects that were made alike share them, without a change of the object that was given to others.
func TestManagedFieldsAreHeldOnce(t *testing.T) {
	var n interned
	a, b, other := managed(`{"f:data":{}}`), managed(`{"f:data":{}}`), managed(`{"f:immutable":{}}`)
	given, before := *b, b.ManagedFields[0].FieldsV1
	n.share(a)
	n.share(b)
	n.share(other)
	require.Same(t, a.ManagedFields[0].FieldsV1, b.ManagedFields[0].FieldsV1)
	require.Same(t, before, given.ManagedFields[0].FieldsV1)
	require.Equal(t, managed(`{"f:immutable":{}}`), other)
	require.Equal(t, managed(`{"f:data":{}}`), b)
}

// TestInternedIsBounded: whoever sends objects of which none is like another makes it begin anew.
func TestInternedIsBounded(t *testing.T) {
	var n interned
	for i := range 3 * maxInterned {
		n.share(managed(fmt.Sprintf(`{"f:data":{"f:%d":{}}}`, i)))
		require.LessOrEqual(t, len(n.sets)+len(n.names), maxInterned)
	}
	large := make([]byte, maxInternedSet)
	for i := range 3 * maxInternedBytes / maxInternedSet {
		large[i%100]++
		n.share(managed(string(large)))
		require.LessOrEqual(t, n.bytes, maxInternedBytes)
	}
}
