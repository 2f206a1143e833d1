package bootstraptokens

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/cluster-bootstrap/token/jws"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/engine"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func token(id string, life time.Duration, more map[string]string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id, UID: "1"},
		Type:       "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{
			"token-id":                []byte(id),
			"token-secret":            []byte("0123456789abcdef"),
			"usage-bootstrap-signing": []byte("true"),
			"expiration":              []byte(now.Add(life).Format(time.RFC3339)),
		},
	}
	for k, v := range more {
		s.Data[k] = []byte(v)
	}
	return s
}

func TestClusterInfoIsSigned(t *testing.T) {
	info := &corev1.ConfigMap{Data: map[string]string{"kubeconfig": "here", "jws-kubeconfig-oldone": "x", "other": "y"}}
	other := token("ffffff", time.Hour, nil)
	other.Type = corev1.SecretTypeOpaque
	tokens := []corev1.Secret{
		*token("aaaaaa", time.Hour, nil), *token("bbbbbb", time.Minute, nil), *token("cccccc", -time.Second, nil),
		*token("dddddd", time.Hour, map[string]string{"usage-bootstrap-signing": "false"}),
		*token("eeeeee", time.Hour, map[string]string{"token-id": "eeeeef"}), *other,
	}
	signed, again, err := Sign(info, tokens, now)
	require.NoError(t, err)
	require.Equal(t, time.Minute, again)
	require.Len(t, signed.Data, 4, "%v", signed.Data)
	require.Equal(t, "y", signed.Data["other"])
	require.True(t, jws.DetachedTokenIsValid(signed.Data["jws-kubeconfig-aaaaaa"], "here", "aaaaaa", "0123456789abcdef"))
	require.True(t, jws.DetachedTokenIsValid(signed.Data["jws-kubeconfig-bbbbbb"], "here", "bbbbbb", "0123456789abcdef"))
	require.Contains(t, info.Data, "jws-kubeconfig-oldone", "the cached object is immutable")

	none, _, err := Sign(signed, tokens, now)
	require.NoError(t, err)
	require.Nil(t, none)
	later, _, err := Sign(signed, tokens, now.Add(2*time.Minute))
	require.NoError(t, err)
	require.NotContains(t, later.Data, "jws-kubeconfig-bbbbbb")
	none, _, err = Sign(&corev1.ConfigMap{}, tokens, now)
	require.NoError(t, err)
	require.Nil(t, none, "nothing to sign")
}

func TestExpiredTokensAreDeleted(t *testing.T) {
	opaque := token("cccccc", -time.Hour, nil)
	opaque.Type = corev1.SecretTypeOpaque
	forever := token("dddddd", 0, nil)
	delete(forever.Data, "expiration")
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(token("aaaaaa", time.Hour, nil),
		token("bbbbbb", -time.Second, nil), opaque, forever).Build()
	f := NewCleaner().New(engine.Env{Client: c, Cache: c, Now: func() time.Time { return now }})
	for id, again := range map[string]time.Duration{"aaaaaa": time.Hour, "bbbbbb": 0, "cccccc": 0, "dddddd": 0} {
		res, err := f(t.Context(), engine.RequestFor("kube-system", "bootstrap-token-"+id))
		require.NoError(t, err)
		require.Equal(t, again, res.RequeueAfter, id)
	}
	var left corev1.SecretList
	require.NoError(t, c.List(t.Context(), &left))
	require.Len(t, left.Items, 3)
	require.Error(t,
		c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "bootstrap-token-bbbbbb"}, &corev1.Secret{}))
}
