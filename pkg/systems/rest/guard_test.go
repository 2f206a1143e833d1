package rest

import (
	"encoding/base64"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTheTokenIsNeeded checks the token as a bearer token and as a password. It changes with its file; without the
// file all requests are refused.
func TestTheTokenIsNeeded(t *testing.T) {
	w := newWorld(t, secure)
	get := func(headers ...string) int { return w.do("GET", "/api/v1/tasks", nil, headers...).status }
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("any:"+token))
	require.Equal(t, http.StatusOK, get("Authorization", "Bearer "+token))
	require.Equal(t, http.StatusOK, get("Authorization", basic))
	require.Equal(t, http.StatusOK, get("Authorization", "Bearer "+token, "Host", "any.example"))
	for _, wrong := range []string{
		"", "Bearer", "Bearer ", "Bearer " + token + "x", "Bearer " + token[1:], token, "Basic !",
		"Basic " + base64.StdEncoding.EncodeToString([]byte(token+":")),
	} {
		a := w.do("GET", "/api/v1/tasks", nil, "Authorization", wrong)
		require.Equal(t, http.StatusUnauthorized, a.status, wrong)
		require.NotEmpty(t, a.header.Get("WWW-Authenticate"))
	}
	require.Equal(t, http.StatusUnauthorized, w.do("GET", "/api/v1/tasks?token="+token, nil).status, "only for streams")
	require.Equal(t, http.StatusNotFound, w.do("GET", "/api/v1/tasks/x/logs/stream?token="+token, nil).status)
	require.Equal(t, http.StatusUnauthorized, w.do("GET", "/nothing", nil).status,
		"routes are not probed without the token")
	require.Equal(t, http.StatusOK, w.do("GET", "/health", nil).status)

	require.NoError(t, os.WriteFile(w.file, []byte("another token of some length"), 0o600))
	require.Equal(t, http.StatusUnauthorized, get("Authorization", "Bearer "+token))
	require.Equal(t, http.StatusOK, get("Authorization", "Bearer another token of some length"))
	require.NoError(t, os.WriteFile(w.file, []byte("short"), 0o600))
	require.Equal(t, http.StatusUnauthorized, get("Authorization", "Bearer short"))
	require.NoError(t, os.Remove(w.file))
	require.Equal(t, http.StatusUnauthorized, get("Authorization", "Bearer another token of some length"))
}

// TestATokenFileIsReadOnlyWhenItChanges checks that an old file is compared by its metadata.
func TestATokenFileIsReadOnlyWhenItChanges(t *testing.T) {
	path := t.TempDir() + "/token"
	require.NoError(t, os.WriteFile(path, []byte(token), 0o600))
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, old, old))
	f, err := newTokenFile(path)
	require.NoError(t, err)
	seen := f.seen
	require.NoError(t, f.check(token))
	require.Same(t, seen, f.seen)
}

// TestPagesOfOthersAreRefused checks the refusal by Origin always, and by Host on loopback, where DNS rebinding is
// possible.
func TestPagesOfOthersAreRefused(t *testing.T) {
	w := newWorld(t)
	for _, host := range []string{"localhost", "localhost:8070", "127.0.0.1:1", "127.1.2.3", "[::1]:8070"} {
		require.Equal(t, http.StatusOK, w.do("GET", "/api/v1/tasks", nil, "Host", host).status, host)
	}
	for _, host := range []string{"evil.example", "evil.example:8070", "localhost.evil.example", "192.0.2.1", "0.0.0.0"} {
		for _, path := range []string{"/api/v1/tasks", "/health", "/nothing"} {
			require.Equal(t, http.StatusForbidden, w.do("GET", path, nil, "Host", host).status, host)
		}
	}
	for _, origin := range []string{"https://evil.example", "null", "http://page.example", "https://page.example.evil"} {
		require.Equal(t, http.StatusForbidden, w.do("POST", "/api/v1/prune", nil, "Origin", origin).status, origin)
	}
	a := w.do("GET", "/api/v1/tasks", nil, "Origin", "https://page.example")
	require.Equal(t, http.StatusOK, a.status)
	require.Equal(t, "https://page.example", a.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "Origin", a.header.Get("Vary"))
	require.Equal(t, http.StatusOK, w.do("GET", "/api/v1/tasks", nil, "Origin", w.url).status, "its own pages")

	before := w.do("OPTIONS", "/api/v1/tasks", nil, "Origin", "https://page.example", "Access-Control-Request-Method",
		"POST")
	require.Equal(t, http.StatusNoContent, before.status)
	require.Equal(t, "GET, POST", before.header.Get("Access-Control-Allow-Methods"))
	require.Equal(t, http.StatusForbidden, w.do("OPTIONS", "/api/v1/tasks", nil, "Origin", "https://evil.example").status)
}

func TestPreflightNeedsNoToken(t *testing.T) {
	w := newWorld(t, secure)
	require.Equal(t, http.StatusNoContent, w.do("OPTIONS", "/api/v1/tasks", nil, "Origin", "https://page.example").status)
	require.Equal(t, http.StatusUnauthorized, w.do("OPTIONS", "/api/v1/tasks", nil).status)
}

// TestWrongMethodsAndPaths checks for Podling's answers.
func TestWrongMethodsAndPaths(t *testing.T) {
	w := newWorld(t)
	a := w.do("DELETE", "/api/v1/tasks/x", nil)
	require.Equal(t, http.StatusMethodNotAllowed, a.status)
	require.Equal(t, "GET, OPTIONS", a.header.Get("Allow"))
	require.JSONEq(t, `{"message":"Method Not Allowed"}`, a.body)
	for _, path := range []string{"/", "/api/v1", "/api/v1/tasks/", "/api/v2/tasks"} {
		require.Equal(t, http.StatusNotFound, w.do("GET", path, nil).status, path)
	}
}

func TestConfigurationsThatAreOpenToAllAreRefused(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.RESTAddress = "0.0.0.0:8070"; c.RESTInsecure = true },
		func(c *Config) { c.RESTAddress = ":8070"; c.RESTInsecure = true },
		func(c *Config) { c.RESTAddress = "127.0.0.1:8070" },
		func(c *Config) { c.RESTAddress = "127.0.0.1:8070"; c.RESTInsecure = true; c.RESTTokenFile = "/token" },
		func(c *Config) {
			c.RESTAddress = "127.0.0.1:8070"
			c.RESTInsecure = true
			c.RESTCORSOrigins = []string{"page.example"}
		},
	} {
		c := Config{}
		change(&c)
		require.Error(t, c.REST.Validate(), "%+v", c.REST)
	}
}
