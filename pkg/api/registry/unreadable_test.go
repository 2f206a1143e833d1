package registry

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// An object whose stored bytes cannot be read does not disappear silently: reading it, or listing its kind and
// namespace, fails. Everything else works, and users with the permission can delete it.
func TestUnreadableObjects(t *testing.T) {
	h := build(t)
	put(h, v1("Secret", ""), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "good", Namespace: "work"}})
	put(h, v1("ConfigMap", ""), configMap("a"))
	bad := v1("Secret", "bad")
	key := bad.Resource.Key("work", "bad")
	rev, err := h.store.Create(t.Context(), key, []byte("k8s:enc:secretbox:v1:lost:garbage"), 0)
	require.NoError(t, err)
	require.NoError(t, h.cache.WaitFor(t.Context(), rev))

	told := func(err error) {
		t.Helper()
		s := requireStatus(t, err, 500, "failed to read one or more secrets from the storage", key)
		require.Equal(t, metav1.StatusReasonStoreReadError, s.Reason)
		require.Equal(t, key, s.Details.Causes[0].Field)
	}
	_, err = h.Get(h.ctx, bad, metav1.GetOptions{})
	told(err)
	for _, o := range []metav1.ListOptions{{}, {ResourceVersion: "0"}, {Limit: 1}} {
		_, err = h.List(h.ctx, v1("Secret", ""), o)
		told(err)
	}
	exact := metav1.ListOptions{
		ResourceVersion: strconv.FormatInt(rev, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}
	_, err = h.List(h.ctx, v1("Secret", ""), exact)
	told(err)
	_, _, _, err = h.Watch(h.ctx, v1("Secret", ""), metav1.ListOptions{})
	told(err)
	_, err = h.DeleteCollection(h.ctx, v1("Secret", ""), metav1.DeleteOptions{}, metav1.ListOptions{})
	told(err)
	_, err = h.Delete(h.ctx, bad, metav1.DeleteOptions{})
	told(err)
	_, err = h.Update(h.ctx, bad, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bad", Namespace: "work"}},
		metav1.UpdateOptions{})
	told(err)
	_, err = h.Patch(h.ctx, bad, types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"bad"}}`), metav1.PatchOptions{FieldManager: "m"})
	told(err)
	_, err = h.Create(h.ctx, v1("Secret", ""),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bad", Namespace: "work"}}, metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)

	_, err = h.Get(h.ctx, v1("Secret", "good"), metav1.GetOptions{})
	require.NoError(t, err)
	_, err = h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{})
	require.NoError(t, err)
	elsewhere := v1("Secret", "")
	elsewhere.Namespace = "default"
	_, err = h.List(h.ctx, elsewhere, metav1.ListOptions{})
	require.NoError(t, err)

	unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: ptr(true)}
	_, err = h.DeleteCollection(h.ctx, v1("Secret", ""), unsafe, metav1.ListOptions{})
	requireStatus(t, err, 422, "DELETECOLLECTION")
	_, err = h.Delete(h.ctx, v1("Secret", "good"), unsafe)
	requireStatus(t, err, 409, "the object is decodable")
	_, err = h.Delete(h.ctx, v1("Secret", "none"), unsafe)
	requireStatus(t, err, 404)
	h.UseAuthorizer(authorizer.AuthorizerFunc(func(_ context.Context,
		a authorizer.Attributes) (authorizer.Decision, string, error) {
		require.Equal(t, unsafeDelete, a.GetVerb())
		require.Equal(t, "bad", a.GetName())
		return authorizer.DecisionNoOpinion, "", nil
	}))
	_, err = h.Delete(h.ctx, bad, unsafe)
	requireStatus(t, err, 403, unsafeDelete)
	h.UseAuthorizer(authorizer.AuthorizerFunc(func(context.Context,
		authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	}))
	dry := *unsafe.DeepCopy()
	dry.DryRun = []string{metav1.DryRunAll}
	_, err = h.Delete(h.ctx, bad, dry)
	require.NoError(t, err)
	_, err = h.Get(h.ctx, bad, metav1.GetOptions{})
	told(err)
	_, err = h.Delete(h.ctx, bad, unsafe)
	require.NoError(t, err)
	_, err = h.Get(h.ctx, bad, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	l, err := h.List(h.ctx, v1("Secret", ""), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, l.Entries, 1)
}
