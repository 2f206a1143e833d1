package cache

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

func samplePods() []*corev1.Pod {
	return []*corev1.Pod{
		pod("a", "bare"),
		pod("a", "html", func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
			p.Annotations = map[string]string{"z": "<a href=\"x\">&</a>", "a": "\u2028 é"}
			p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Args: []string{""}}}
			p.Status.StartTime = &metav1.Time{}
			p.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{}}`)}},
			}
		}),
	}
}

func item(e *Entry) []byte {
	begin, rest := e.JSONItem(nil)
	return append([]byte(begin), rest...)
}

// Encodings are byte for byte equal to the output of upstream's serializers.
func TestEncodings(t *testing.T) {
	js := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, clientscheme.Scheme, clientscheme.Scheme,
		serializer.SerializerOptions{StreamingCollectionsEncoding: true})
	pb := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	var items [][]byte
	for i, p := range samplePods() {
		stored, err := pods.Encode(p)
		require.NoError(t, err)
		obj, err := pods.Decode(stored, int64(i+7))
		require.NoError(t, err)
		e := &Entry{Object: obj, Key: pods.Key(p.Namespace, p.Name), row: pods}

		var want bytes.Buffer
		require.NoError(t, js.Encode(obj, &want))
		require.Equal(t, want.String(), string(e.JSON())+"\n")
		want.Reset()
		require.NoError(t, pb.Encode(obj, &want))
		require.True(t, bytes.Contains(want.Bytes(), e.Proto()))
		require.Same(t, &e.JSON()[0], &e.JSON()[0])

		items = append(items, item(e))
		bare := *obj.(*corev1.Pod)
		bare.TypeMeta = metav1.TypeMeta{}
		list.Items = append(list.Items, bare)
	}
	var want bytes.Buffer
	require.NoError(t, js.Encode(list, &want))
	got := `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[` + string(bytes.Join(items, []byte{','})) + "]}\n"
	require.Equal(t, want.String(), got)
}

// Objects without a Go type keep kind and apiVersion in lists, as upstream's custom resources do.
func TestUnstructuredItem(t *testing.T) {
	row := &kind.Resource{
		GroupVersionKind: schema.GroupVersionKind{Group: "x.io", Version: "v1", Kind: "Thing"}, Plural: "things",
		Keys: "x.io/things",
		New:  func() client.Object { return &unstructured.Unstructured{} },
	}
	o := &unstructured.Unstructured{
		Object: map[string]any{"kind": "Thing", "apiVersion": "x.io/v1", "metadata": map[string]any{"name": "t"}},
	}
	e := &Entry{Object: o, Key: row.Key("", "t"), row: row}
	require.Equal(t, `{"apiVersion":"x.io/v1","kind":"Thing","metadata":{"name":"t"}}`, string(item(e)))
	require.Nil(t, e.Proto())
	require.Equal(t, "9", e.at(9).Object.GetResourceVersion())
	require.Empty(t, o.GetResourceVersion())
}
