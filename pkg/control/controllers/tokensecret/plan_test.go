package tokensecret

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "u"}}
	secret := &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken,
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "ns",
			Name:        "s",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"},
		}}
	ca := []byte("pem")

	d := Plan(secret, account, ca)
	require.True(t, d.Sign)
	require.Equal(t, map[string][]byte{"ca.crt": ca, "namespace": []byte("ns")}, d.Write.Data)
	require.Equal(t, "u", d.Write.Annotations[corev1.ServiceAccountUIDKey])
	require.Nil(t, secret.Data, "it is shared")

	whole := d.Write
	whole.Data["token"] = []byte("t")
	require.Equal(t, Decision{}, Plan(whole, account, ca), "a second plan is empty")
	require.Equal(t, Decision{}, Plan(whole, account, nil), "without a bundle that of the secret stays")

	d = Plan(whole, account, []byte("new"))
	require.False(t, d.Sign, "a token is never replaced")
	require.Equal(t, map[string][]byte{"ca.crt": []byte("new"), "namespace": []byte("ns"), "token": []byte("t")},
		d.Write.Data)

	fixed := secret.DeepCopy()
	fixed.Immutable = new(true)
	require.Equal(t, Decision{}, Plan(fixed, account, ca), "it cannot be written")

	other := account.DeepCopy()
	other.UID = "v"
	require.Equal(t, Decision{Delete: true}, Plan(whole, other, ca), "another account of the same name")
	require.Equal(t, Decision{Delete: true}, Plan(whole, nil, ca))
	whole.DeletionTimestamp = &metav1.Time{}
	require.Equal(t, Decision{}, Plan(whole, nil, ca))
}
