package kind

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func sameAsMarshal(t require.TestingT, obj client.Object) {
	want, wantErr := json.Marshal(obj)
	got, err := MarshalJSON(obj)
	require.Equal(t, wantErr == nil, err == nil, "%v %v", wantErr, err)
	require.Equal(t, string(want), string(got))
}

func TestMarshalJSONIsThatOfTheStandardLibrary(t *testing.T) {
	for _, content := range []map[string]any{
		nil, {}, {"a": nil}, {"b": map[string]any(nil), "a": []any(nil), "c": []any{}},
		{"n": int64(math.MinInt64), "f": 1e21, "g": -0.5, "t": true, "z": math.Copysign(0, -1)},
		{"s": "a\"b\\c<d>&e\n\t\x00\x7f\u2028é\xff"}, {"<key>": "v", "é": "v", "\xff": "v", "\"": "v"},
		{"i": 5, "j": int32(6), "k": json.Number("7")}, {"not a number": math.NaN()},
		{"deep": []any{map[string]any{"x": []any{"y", int64(1), nil, false}}}},
	} {
		sameAsMarshal(t, &unstructured.Unstructured{Object: content})
	}
	sameAsMarshal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	value := rapid.Custom(func(rt *rapid.T) any { return drawJSON(rt, 0) })
	rapid.Check(t, func(rt *rapid.T) {
		sameAsMarshal(rt, &unstructured.Unstructured{Object: rapid.MapOf(rapid.String(), value).Draw(rt, "content")})
	})
}

func drawJSON(t *rapid.T, depth int) any {
	switch n := rapid.IntRange(0, 6).Draw(t, "form"); {
	case n == 0:
		return rapid.String().Draw(t, "text")
	case n == 1:
		return rapid.Int64().Draw(t, "number")
	case n == 2:
		return rapid.Float64().Draw(t, "fraction")
	case n == 3:
		return rapid.Bool().Draw(t, "flag")
	case n == 4 && depth < 3:
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return drawJSON(t, depth+1) }), 0, 3).Draw(t, "list")
	case n == 5 && depth < 3:
		return rapid.MapOfN(rapid.String(), rapid.Custom(func(t *rapid.T) any { return drawJSON(t, depth+1) }), 0, 3).Draw(t,
			"map")
	}
	return nil
}

func BenchmarkMarshalJSON(b *testing.B) {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bench.example.com/v1", "kind": "Widget",
		"metadata": map[string]any{
			"name":       "name",
			"namespace":  "default",
			"labels":     map[string]any{"app": "bench"},
			"generation": int64(1),
		},
		"spec": map[string]any{"size": int64(7), "color": "red", "parts": []any{"a wheel", "another wheel", "an axle"}},
	}}
	for name, f := range map[string]func(client.Object) ([]byte, error){
		"here": MarshalJSON, "library": func(o client.Object) ([]byte, error) { return json.Marshal(o) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f(obj); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
