package registry

import (
	"math/rand/v2"
	"reflect"
	"testing"

	discovery "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// fill sets lists and maps at random to nothing, empty or one element, and makes what pointers lead to.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	if depth > 8 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() && v.Type().Field(i).Name != "TypeMeta" {
				fill(r, f, depth+1)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		n := r.IntN(3) - 1
		if n >= 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(r, v.Index(i), depth+1)
			}
		}
	case reflect.Map:
		if r.IntN(3) == 0 {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		if v.Type().Key().Kind() == reflect.String && r.IntN(2) == 0 {
			elem := reflect.New(v.Type().Elem()).Elem()
			fill(r, elem, depth+1)
			v.SetMapIndex(reflect.ValueOf("k").Convert(v.Type().Key()), elem)
		}
	}
}

// TestStoredObjectsReadAsAnswered: the JSON of an object is the same before it is stored and after a restart decoded
// it, for every kind that is stored as protobuf.
func TestStoredObjectsReadAsAnswered(t *testing.T) {
	h := build(t)
	var e empties
	kinds := 0
	for _, row := range h.kinds.Table().All() {
		if !row.Proto || row.StoredJSON || row.StoredAs != nil {
			continue
		}
		kinds++
		for seed := range uint64(50) {
			o := row.New()
			fill(rand.New(rand.NewPCG(seed, 1)), reflect.ValueOf(o).Elem(), 0)
			o.SetResourceVersion("")
			o.SetSelfLink("")
			o.GetObjectKind().SetGroupVersionKind(row.GroupVersionKind)
			e.clear(reflect.ValueOf(o))
			value, err := row.Encode(o)
			require.NoError(t, err)
			plain := *row
			plain.Default = nil // it sets what this test's objects do not have
			back, err := plain.Decode(value, 7)
			require.NoError(t, err)
			o.SetResourceVersion("7")
			want, err := kind.MarshalJSON(o)
			require.NoError(t, err)
			have, err := kind.MarshalJSON(back)
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(have), "%s, seed %d", row.GroupVersionKind, seed)
		}
	}
	require.Greater(t, kinds, 40)
}

func TestRequiredEmptyListsAreNull(t *testing.T) {
	h := build(t)
	for _, o := range []client.Object{
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{}},
		&discovery.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, AddressType: discovery.AddressTypeIPv4,
			Endpoints: []discovery.Endpoint{}, Ports: []discovery.EndpointPort{},
		},
	} {
		row := h.kinds.Table().ByType(o)
		o.SetNamespace("work")
		created := put(h, Target{Resource: row, Namespace: "work"}, o)
		raw, err := kind.MarshalJSON(created)
		require.NoError(t, err)
		require.Contains(t, string(raw), ":null")
		require.NotContains(t, string(raw), "[]")
	}
}
