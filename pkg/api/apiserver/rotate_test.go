package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// After the keys of a running server change, tokens of both keys are accepted while both keys are configured.
func TestServiceAccountKeysChange(t *testing.T) {
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
	}
	var verifies atomic.Pointer[[]any]
	w := newWorld(t, func(c *Config) { c.ServiceAccountKeys = func() []any { return *verifies.Load() } }, func(*Config) {
		verifies.Store(&[]any{keys[0].Public()})
	})
	require.NoError(t, w.sign.Use(keys[0]))
	w.namespace("d")
	require.Equal(t, 201,
		w.do(w.http, "POST", "/api/v1/namespaces/d/serviceaccounts", `{"metadata":{"name":"robot"}}`).code)
	token := func() string {
		t.Helper()
		r := w.do(w.http, "POST", "/api/v1/namespaces/d/serviceaccounts/robot/token", `{}`)
		require.Equal(t, 201, r.code, "%s", r.body)
		var answer authenticationv1.TokenRequest
		require.NoError(t, json.Unmarshal(r.body, &answer))
		return answer.Status.Token
	}
	// 403 means authenticated, 401 not. The server caches accepted tokens for a while, so each token is used once.
	ask := func(token string) int {
		return w.do(w.anonymous(), "GET", "/api/v1/namespaces/d/configmaps", "", "Authorization", "Bearer "+token).code
	}
	first, second, third := token(), token(), token()
	require.Equal(t, 403, ask(first))

	require.NoError(t, w.sign.Use(keys[1]))
	fresh, more := token(), token()
	require.Equal(t, 401, ask(fresh), "nobody has said yet that this key verifies")
	verifies.Store(&[]any{keys[1].Public(), keys[0].Public()})
	require.Equal(t, 403, ask(fresh))
	require.Equal(t, 403, ask(second))
	require.Equal(t, 2, strings.Count(string(w.do(w.http, "GET", "/openid/v1/jwks", "").body), `"kid"`))
	verifies.Store(&[]any{keys[1].Public()})
	require.Equal(t, 403, ask(more))
	require.Equal(t, 401, ask(third))
}
