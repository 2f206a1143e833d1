package registry

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	"github.com/coracle-dev/coracle/pkg/state/store"
)

func names(l *List) (out []string) {
	for _, e := range l.Entries {
		out = append(out, e.Object.GetName())
	}
	return out
}

func TestListInPages(t *testing.T) {
	h := build(t)
	for i := range 5 {
		put(h, v1("ConfigMap", ""), configMap(fmt.Sprintf("c%d", i)))
	}
	cms := v1("ConfigMap", "")
	first, err := h.List(h.ctx, cms, metav1.ListOptions{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"c0", "c1"}, names(first))
	require.EqualValues(t, 3, *first.Remaining)

	// Changes between the pages are not visible.
	put(h, v1("ConfigMap", ""), configMap("c2a"))
	_, err = h.Delete(h.ctx, v1("ConfigMap", "c3"), metav1.DeleteOptions{})
	require.NoError(t, err)
	second, err := h.List(h.ctx, cms, metav1.ListOptions{Limit: 2, Continue: first.Continue})
	require.NoError(t, err)
	require.Equal(t, []string{"c2", "c3"}, names(second))
	require.Equal(t, first.Revision, second.Revision)
	require.EqualValues(t, 1, *second.Remaining)
	third, err := h.List(h.ctx, cms, metav1.ListOptions{Limit: 2, Continue: second.Continue})
	require.NoError(t, err)
	require.Equal(t, []string{"c4"}, names(third))
	require.Empty(t, third.Continue)
	require.Nil(t, third.Remaining)

	// With a selector, the remaining item count is unknown.
	l, err := h.List(h.ctx, cms, metav1.ListOptions{Limit: 1, FieldSelector: "metadata.name!=c0"})
	require.NoError(t, err)
	require.Equal(t, []string{"c1"}, names(l))
	require.Nil(t, l.Remaining)

	// An inconsistent continuation returns the current objects.
	token, err := storage.EncodeContinue(cms.Resource.Key("work", "c2"), cms.Resource.Prefix("work"), -1)
	require.NoError(t, err)
	l, err = h.List(h.ctx, cms, metav1.ListOptions{Continue: token})
	require.NoError(t, err)
	require.Equal(t, []string{"c2", "c2a", "c4"}, names(l))
}

func TestListAtARevision(t *testing.T) {
	h := build(t)
	a := put(h, v1("ConfigMap", ""), configMap("a", "k", "1"))
	put(h, v1("ConfigMap", ""), configMap("b"))
	_, err := h.Update(h.ctx, v1("ConfigMap", "a"), configMap("a", "k", "2"), metav1.UpdateOptions{})
	require.NoError(t, err)
	l, err := h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{
		ResourceVersion: a.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names(l))
	require.Equal(t, "1", l.Entries[0].Object.(*corev1.ConfigMap).Data["k"])
	require.Contains(t, string(l.Entries[0].JSON()), `"kind":"ConfigMap"`)
	l, err = h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{ResourceVersion: a.ResourceVersion})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, names(l))
}

func TestListRefuses(t *testing.T) {
	h := build(t)
	for name, c := range map[string]struct {
		o     metav1.ListOptions
		code  int32
		words string
	}{
		"bad token": {metav1.ListOptions{Continue: "?"}, 400, "invalid continue token"},
		"bad label": {metav1.ListOptions{LabelSelector: "a in"}, 400, "unable to parse"},
		"bad field": {
			metav1.ListOptions{FieldSelector: "spec.color=red"}, 400, "\"spec.color\" is not a known field selector",
		},
		"bad version": {
			metav1.ListOptions{ResourceVersion: "abc"},
			400,
			`invalid resource version: resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax`,
		},
		"bad match": {
			metav1.ListOptions{ResourceVersion: "1", ResourceVersionMatch: "Nearly"},
			422,
			"resourceVersionMatch: Unsupported value",
		},
		"match alone": {
			metav1.ListOptions{ResourceVersionMatch: "Exact"},
			422,
			"resourceVersionMatch is forbidden unless resourceVersion is provided",
		},
		"initial events": {metav1.ListOptions{SendInitialEvents: ptr(true)}, 422, "sendInitialEvents is forbidden for list"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.List(h.ctx, v1("ConfigMap", ""), c.o)
			requireStatus(t, err, c.code, c.words)
		})
	}
}

func TestGetWaitsForARevision(t *testing.T) {
	h := build(t)
	put(h, v1("ConfigMap", ""), configMap("a"))
	_, err := h.Get(h.ctx, v1("ConfigMap", "a"), metav1.GetOptions{ResourceVersion: "999999"})
	s := requireStatus(t, err, 504, "Too large resource version: 999999")
	require.Equal(t, metav1.CauseTypeResourceVersionTooLarge, s.Details.Causes[0].Type)
	_, err = h.Get(h.ctx, v1("ConfigMap", "a"), metav1.GetOptions{ResourceVersion: "0"})
	require.NoError(t, err)
}

// After the first page's revision is compacted, the response is a 410 with a token for an inconsistent continuation.
func TestListGoesOnAfterCompaction(t *testing.T) {
	h := over(t, store.Config{RetainRevisions: 10})
	for i := range 4 {
		put(h, v1("ConfigMap", ""), configMap(fmt.Sprintf("c%d", i)))
	}
	first, err := h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{Limit: 2})
	require.NoError(t, err)
	for i := 0; err == nil; i++ {
		require.Less(t, i, 10000, "the store never compacts")
		_, err = h.Patch(h.ctx, v1("ConfigMap", "c0"), types.MergePatchType, fmt.Appendf(nil, `{"data":{"i":"%d"}}`, i),
			metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{Limit: 2, Continue: first.Continue})
	}
	s := requireStatus(t, err, 410, "The provided continue parameter is too old to display a consistent list result")
	rest, err := h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{Limit: 2, Continue: s.Continue})
	require.NoError(t, err)
	require.Equal(t, []string{"c2", "c3"}, names(rest))
}
