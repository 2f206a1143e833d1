package jointoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func authority(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func cluster(t *testing.T) ctrl.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithIndex(&corev1.Secret{}, "type", func(o ctrl.Object) []string {
		return []string{string(o.(*corev1.Secret).Type)}
	}).Build()
}

func TestTokenKnowsItsServer(t *testing.T) {
	mine, other := authority(t), authority(t)
	token, err := New(mine)
	require.NoError(t, err)
	again, err := Parse(token.String() + "\n")
	require.NoError(t, err)
	require.Equal(t, token, again)
	for _, shown := range [][]byte{mine, append(append([]byte{}, other...), mine...)} {
		cert, err := token.Authority(shown)
		require.NoError(t, err)
		require.Equal(t, token.authority, fingerprint(cert))
	}
	_, err = token.Authority(other)
	require.ErrorContains(t, err, "not the one that the token was made for")
	_, err = token.Authority([]byte("not found"))
	require.ErrorContains(t, err, "is it a Coracle server")
	_, err = New(nil)
	require.Error(t, err)
}

func TestParseRefuses(t *testing.T) {
	token, err := New(authority(t))
	require.NoError(t, err)
	good := token.String()
	for _, bad := range []string{
		"", "coracle1.a.b", good + ".x", strings.ToUpper(good), good[:len(good)-1],
		strings.Replace(good, token.ID, "../etcd", 1), strings.Repeat(" ", MaxLength) + good,
	} {
		_, err := Parse(bad)
		require.Error(t, err, bad)
	}
}

func TestLifeOfAToken(t *testing.T) {
	c, ca, now := cluster(t), authority(t), time.Now()
	token, err := Create(t.Context(), c, ca, time.Hour, "rack 7", now)
	require.NoError(t, err)
	forever, err := Create(t.Context(), c, ca, 0, "", now)
	require.NoError(t, err)
	require.NoError(t, Check(t.Context(), c, token.String(), now))
	require.NoError(t, Check(t.Context(), c, token.String()+"\n", now.Add(59*time.Minute)))
	require.ErrorIs(t, Check(t.Context(), c, token.String(), now.Add(time.Hour)), ErrRefused)
	require.NoError(t, Check(t.Context(), c, forever.String(), now.Add(24*365*time.Hour)))

	// Halves of different tokens do not make a valid one.
	mixed := token
	mixed.secret = forever.secret
	require.ErrorIs(t, Check(t.Context(), c, mixed.String(), now), ErrRefused)
	unknown, err := New(ca)
	require.NoError(t, err)
	require.ErrorIs(t, Check(t.Context(), c, unknown.String(), now), ErrRefused)
	require.ErrorIs(t, Check(t.Context(), c, "", now), ErrRefused)

	// The cluster does not store the secret.
	var s corev1.Secret
	require.NoError(t, c.Get(t.Context(), ctrl.ObjectKeyFromObject(secret(token.ID)), &s))
	for key, value := range s.Data {
		require.NotContains(t, string(value), token.secret, key)
	}

	all, err := List(t.Context(), c)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.NoError(t, Revoke(t.Context(), c, forever.ID))
	require.ErrorIs(t, Check(t.Context(), c, forever.String(), now), ErrRefused)
	require.ErrorContains(t, Revoke(t.Context(), c, forever.ID), "there is no join token")
	require.ErrorContains(t, Revoke(t.Context(), c, "../x"), "there is no join token")

	// Creating a token removes expired ones.
	_, err = Create(t.Context(), c, ca, time.Hour, "", now.Add(2*time.Hour))
	require.NoError(t, err)
	all, err = List(t.Context(), c)
	require.NoError(t, err)
	require.Len(t, all, 1)
	_, err = Create(t.Context(), c, ca, -time.Hour, "", now)
	require.Error(t, err)
}

func TestOtherSecretsAreNoTokens(t *testing.T) {
	c, now := cluster(t), time.Now()
	token, err := New(authority(t))
	require.NoError(t, err)
	for _, change := range []func(*corev1.Secret){
		func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque },
		func(s *corev1.Secret) { s.Data[hashKey] = nil },
		func(s *corev1.Secret) { s.Data[expirationKey] = []byte("later") },
	} {
		s := secret(token.ID)
		s.Type, s.Data = secretType, map[string][]byte{hashKey: []byte(token.hash())}
		change(s)
		require.NoError(t, c.Create(t.Context(), s))
		require.ErrorIs(t, Check(t.Context(), c, token.String(), now), ErrRefused)
		require.NoError(t, c.Delete(t.Context(), s))
	}
}

func FuzzParse(f *testing.F) {
	token, err := New(authority(f))
	require.NoError(f, err)
	f.Add(token.String())
	f.Add("coracle2...")
	f.Fuzz(func(t *testing.T, text string) {
		if parsed, err := Parse(text); err == nil {
			require.Equal(t, strings.TrimSpace(text), parsed.String())
		}
	})
}

func FuzzAuthority(f *testing.F) {
	token, err := New(authority(f))
	require.NoError(f, err)
	f.Add(authority(f))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, shown []byte) { _, _ = token.Authority(shown) })
}
