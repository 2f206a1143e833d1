package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// FuzzPatch applies patches of every type to a pod, as a dry run: the result is a 4xx or a pod, within bounded time.
func FuzzPatch(f *testing.F) {
	h := build(f)
	put(h, v1("Pod", ""), smallPod("p"))
	all := []types.PatchType{
		types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyPatchType,
	}
	for i, seeds := range [][]string{
		{`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`, `[{"op":"copy","from":"/metadata","path":"/spec"}]`,
			`[{"op":"move","from":"/spec/containers/0","path":"/spec/containers/-"}]`, `[{"op":"replace","path":"","value":{}}]`,
			`[{"op":"remove","path":"/spec/containers/-1"}]`, `[{"op":"test","path":"/spec/nodeName","value":null}]`},
		{`{"metadata":{"labels":{"a":null}}}`, `{"spec":null}`, `[]`, `null`},
		{
			`{"spec":{"containers":[{"$patch":"replace"},{"name":"c"}]}}`,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`,
			`{"spec":{"$retainKeys":["containers"],"$setElementOrder/containers":[{"name":"c"}]}}`,
		},
		{
			"apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {a: b}}\n",
			`{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"c","image":"j"}]}}`,
			"a: &a {b: *a}\n",
		},
	} {
		for _, s := range seeds {
			f.Add(uint8(i), s)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, body string) {
		o := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
		pt := all[int(n)%len(all)]
		if pt == types.ApplyPatchType {
			o.FieldManager, o.Force = "me", ptr(true)
		}
		began := time.Now()
		res, err := h.Patch(h.ctx, v1("Pod", "p"), pt, []byte(body), o)
		require.Less(t, time.Since(began), time.Minute)
		if err != nil {
			status, ok := err.(apierrors.APIStatus) //nolint:errorlint // the registry's own promise: no wrapping
			require.True(t, ok)
			require.Less(t, status.Status().Code, int32(500), "%v", err)
			return
		}
		require.Equal(t, "p", answer[*corev1.Pod](t, res, nil).Name)
	})
}

func FuzzListOptions(f *testing.F) {
	h := build(f)
	put(h, v1("ConfigMap", ""), configMap("a"))
	f.Add("a=b,c in (d,e),!f", "metadata.name=a", "", int64(0))
	f.Add("a notin (", "metadata.namespace!=work", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0",
		int64(1))
	f.Add("a>1", "x", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vYSJ9", int64(-1))
	target := Target{Resource: assembled.Kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("ConfigMap")), Namespace: "work"}
	f.Fuzz(func(t *testing.T, labels, fields, token string, limit int64) {
		l, err := h.List(h.ctx, target, metav1.ListOptions{
			LabelSelector: labels,
			FieldSelector: fields,
			Continue:      token,
			Limit:         limit,
		})
		if err != nil {
			status, ok := err.(apierrors.APIStatus) //nolint:errorlint // the registry's own promise: no wrapping
			require.True(t, ok)
			require.True(t, status.Status().Code < 500 || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge),
				"%v", err)
			return
		}
		for _, e := range l.Entries {
			require.Equal(t, "work", e.Object.GetNamespace(), "a token must not lead out of the namespace")
		}
	})
}
