package server

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

func TestAttempts(t *testing.T) {
	var a attempts
	now := time.Now()
	here, there := sender("192.0.2.1:4000"), sender("192.0.2.2:4000")
	require.Equal(t, here, sender("[::ffff:192.0.2.1]:99"))
	require.Equal(t, sender("[2001:db8::1]:1"), sender("[2001:db8::2]:2"), "a machine has many addresses of IPv6")
	for range mostRefused {
		require.True(t, a.allowed(here, now))
		a.failed(here, now)
	}
	require.False(t, a.allowed(here, now))
	require.True(t, a.allowed(there, now))
	require.False(t, a.allowed(here, now.Add(attemptsWindow-time.Second)))
	require.True(t, a.allowed(here, now.Add(attemptsWindow)))
}

// TestAttemptsAreBounded checks the size of the map and the number of attempts per address.
func TestAttemptsAreBounded(t *testing.T) {
	var a attempts
	now := time.Now()
	for i := range 3 * mostSenders {
		from := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		if a.allowed(from, now) {
			a.failed(from, now)
		}
	}
	require.LessOrEqual(t, len(a.count), mostSenders+1)
	rapid.Check(t, func(t *rapid.T) {
		var a attempts
		refused := map[netip.Prefix]int{}
		for range rapid.IntRange(1, 200).Draw(t, "n") {
			from := sender(fmt.Sprintf("192.0.2.%d:1", rapid.IntRange(0, 5).Draw(t, "from")))
			require.Equal(t, refused[from] < mostRefused, a.allowed(from, now))
			if a.allowed(from, now) {
				a.failed(from, now)
				refused[from]++
			}
		}
	})
}

// TestWrongTokensAreLimited checks that wrong tokens are limited by address before the request is read, and that
// valid tokens are not.
func TestWrongTokensAreLimited(t *testing.T) {
	c := newCluster(t)
	handler := c.handler(http.NotFoundHandler())
	ask := func(token, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, joinPath, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	for range 2 * mostRefused {
		require.Equal(t, http.StatusBadRequest, ask(c.token.String(), "{").Code)
	}
	require.Equal(t, http.StatusBadRequest, ask(c.token.String(), strings.Repeat(" ", maxJoinBody+1)).Code)
	for range mostRefused {
		require.Equal(t, http.StatusUnauthorized, ask("guess", "{").Code)
	}
	w := ask("guess", "{")
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.NotEmpty(t, w.Header().Get("Retry-After"))
}

// TestAdmissionsAreBounded checks that machines that join but never register cannot exhaust the server's memory.
func TestAdmissionsAreBounded(t *testing.T) {
	m := newMembers(nil, nil)
	now := time.Now()
	for i := range mostAdmitted {
		require.NoError(t, m.admit(fmt.Sprint("n", i), "a", now))
	}
	require.Error(t, m.admit("another", "a", now))
	require.NoError(t, m.admit("n0", "b", now), "who asks again takes no more")
	require.NoError(t, m.admit("another", "a", now.Add(registrationTime+time.Second)), "what has expired makes room")
}

func FuzzJoinRequest(f *testing.F) {
	keys, err := pki.Load(f.TempDir())
	require.NoError(f, err)
	der, err := x509.MarshalPKIXPublicKey(keys.ServiceAccount.Public())
	require.NoError(f, err)
	good, err := json.Marshal(joinRequest{"n1", "192.0.2.7", der})
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"nodeName":"N","nodeIP":"::1%eth0","publicKey":"AAAA"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		ask, err := parseJoinRequest(body)
		if err != nil {
			return
		}
		public, err := ask.check()
		require.NoError(t, err)
		// An accepted request can be signed, and names the requested node.
		j := &joiner{keys: keys}
		answer, err := j.issue(ask, public, nil)
		require.NoError(t, err)
		cert := certificate(t, answer.Client)
		require.Equal(t, nodeUser(ask.NodeName), cert.Subject.CommonName)
		require.False(t, bytes.Equal(answer.Client, answer.Serving))
	})
}
