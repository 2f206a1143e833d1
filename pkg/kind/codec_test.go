package kind

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var codecPods = &Resource{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"), Plural: "pods", Namespaced: true, Keys: "pods",
	Proto: true,
	New:   func() client.Object { return &corev1.Pod{} },
}

func codecPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              "p",
			Namespace:         "n",
			UID:               "u",
			ResourceVersion:   "12",
			SelfLink:          "/old",
			CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)),
		},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func upstream(t testing.TB, p *corev1.Pod) []byte {
	p = p.DeepCopy()
	p.ResourceVersion, p.SelfLink = "", ""
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	var b bytes.Buffer
	require.NoError(t, protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme).Encode(p, &b))
	return b.Bytes()
}

func TestStoredAsUpstreamDoes(t *testing.T) {
	p := codecPod()
	before := p.DeepCopy()
	got, err := codecPods.Encode(p)
	require.NoError(t, err)
	require.Equal(t, upstream(t, p), got)
	require.Equal(t, before, p, "the argument must stay as it is")
	large := codecPod()
	large.Annotations = map[string]string{"large": string(bytes.Repeat([]byte("x"), 1<<20))}
	got, err = codecPods.Encode(large)
	require.NoError(t, err)
	require.Equal(t, upstream(t, large), got)
}

func TestDecodeStored(t *testing.T) {
	want := codecPod()
	want.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	want.ResourceVersion, want.SelfLink = "77", ""
	asJSON := want.DeepCopy()
	asJSON.ResourceVersion = ""
	js, err := json.Marshal(asJSON)
	require.NoError(t, err)
	for name, b := range map[string][]byte{"protobuf": upstream(t, want), "JSON under a protobuf kind": js} {
		got, err := codecPods.Decode(b, 77)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	node := upstream(t, want)
	node = bytes.Replace(node, []byte("Pod"), []byte("Nod"), 1)
	for name, b := range map[string][]byte{
		"nothing": nil, "no message": []byte("k8s\x00\xff\xff"), "half": upstream(t, want)[:40], "another kind": node,
		"no kind": []byte(`{"metadata":{}}`), "no JSON": []byte("hello"),
	} {
		_, err := codecPods.Decode(b, 1)
		require.ErrorIs(t, err, ErrDecode, name)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(upstream(f, codecPod()))
	f.Add([]byte(`{"kind":"Pod","apiVersion":"v1"}`))
	f.Add([]byte("k8s\x00\x0a\x02\x0a\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		obj, err := codecPods.Decode(b, 3)
		if err != nil {
			return
		}
		again, err := codecPods.Encode(obj)
		require.NoError(t, err)
		_, err = codecPods.Decode(again, 3)
		require.NoError(t, err)
	})
}

func BenchmarkCodec(b *testing.B) {
	stored, err := codecPods.Encode(codecPod())
	require.NoError(b, err)
	obj, err := codecPods.Decode(stored, 1)
	require.NoError(b, err)
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			_, _ = codecPods.Encode(obj)
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			_, _ = codecPods.Decode(stored, 1)
		}
	})
}
