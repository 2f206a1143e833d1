package access

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/klog/v2"

	"github.com/coracle-dev/coracle/pkg/api/access/accesstest"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const own = "https://kubernetes.default.svc"

// structured returns an AuthenticationConfiguration whose providers map and validate claims by CEL.
func structured(providers ...*accesstest.Provider) string {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"
	for i, p := range providers {
		text += fmt.Sprintf(`- issuer:
    url: %s
    audiences: [coracle, other]
    audienceMatchPolicy: MatchAny
    certificateAuthority: |
      %s
  claimMappings:
    username: {expression: '"p%d:" + claims.sub'}
    groups: {expression: 'claims.?roles.orValue([])'}
    uid: {expression: claims.uid}
    extra:
    - {key: example.com/tenant, valueExpression: claims.tenant}
  claimValidationRules:
  - {expression: 'claims.exp - claims.nbf <= 86400', message: total token lifetime must not exceed 24 hours}
  userValidationRules:
  - {expression: "!user.username.startsWith('system:') && !('system:masters' in user.groups)", message: no system users}
`, p.URL, strings.ReplaceAll(strings.TrimSpace(p.CA()), "\n", "\n      "), i)
	}
	return text
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
	return path
}

func start(t testing.TB, cfg Config) *Access {
	t.Helper()
	cfg.Issuers, cfg.Audiences, cfg.Log = []string{own}, []string{own}, slog.New(slog.DiscardHandler)
	a, err := New(cfg)
	require.NoError(t, err)
	runtest.Start(t, a)
	return a
}

func claims(more map[string]any) map[string]any {
	now := time.Now().Unix()
	c := map[string]any{
		"aud":    "coracle",
		"sub":    "jane",
		"uid":    "u1",
		"tenant": "blue",
		"roles":  []string{"dev"},
		"nbf":    now - 60,
		"exp":    now + 600,
	}
	for k, v := range more {
		c[k] = v
	}
	return c
}

func ask(t testing.TB, a *Access, token string) (*authenticator.Response, error) {
	t.Helper()
	res, ok, err := a.AuthenticateToken(authenticator.WithAudiences(t.Context(), authenticator.Audiences{own}), token)
	require.Equal(t, ok, res != nil)
	return res, err
}

func TestClaimsAreMappedAndChecked(t *testing.T) {
	p := accesstest.Start(t)
	a := start(t, Config{AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"), structured(p))})
	res, err := ask(t, a, p.Token(t, claims(nil)))
	require.NoError(t, err)
	require.Equal(t, "p0:jane", res.User.GetName())
	require.Equal(t, []string{"dev"}, res.User.GetGroups())
	require.Equal(t, "u1", res.User.GetUID())
	require.Equal(t, map[string][]string{"example.com/tenant": {"blue"}}, res.User.GetExtra())
	for name, c := range map[string]struct {
		token, message string
	}{
		"a claim that breaks a rule": {
			p.Token(t, claims(map[string]any{"exp": time.Now().Unix() + 100000})),
			"total token lifetime must not exceed 24 hours",
		},
		"a user that breaks a rule": {
			p.Token(t, claims(map[string]any{"roles": []string{"system:masters"}})), "no system users",
		},
		"another audience": {p.Token(t, claims(map[string]any{"aud": "someone"})), "expected audience in"},
		"expired": {
			p.Token(t, claims(map[string]any{"exp": time.Now().Unix() - 600})), "token is expired",
		},
		"a claim that is not there": {
			p.Token(t, map[string]any{"aud": "coracle", "sub": "j", "uid": "u", "nbf": 1, "exp": time.Now().Unix() + 60}),
			"tenant",
		},
		"signed by nobody": {p.Token(t, claims(nil)) + "AAAA", ""},
		"a key that nobody has known": {
			accesstest.Start(t).Token(t, claims(map[string]any{"iss": p.URL})), "failed to verify signature",
		},
	} {
		res, err := ask(t, a, c.token)
		require.Nil(t, res, name)
		require.ErrorContains(t, err, c.message, name)
	}
	res, err = ask(t, a, accesstest.Start(t).Token(t, claims(nil)))
	require.Nil(t, res, "of a provider that is not configured")
	require.NoError(t, err)
}

func TestTheFileIsFollowed(t *testing.T) {
	first, second := accesstest.Start(t), accesstest.Start(t)
	path := write(t, filepath.Join(t.TempDir(), "f"), structured(first))
	a := start(t, Config{AuthenticationFile: path})
	was := a.providers.Load()
	res, err := ask(t, a, second.Token(t, claims(nil)))
	require.Nil(t, res)
	require.NoError(t, err)

	write(t, path, "kind: nonsense")
	write(t, path, structured(first, second))
	require.Eventually(t, func() bool { return a.providers.Load() != was }, 2*time.Minute, time.Millisecond)
	res, err = ask(t, a, second.Token(t, claims(nil)))
	require.NoError(t, err)
	require.Equal(t, "p1:jane", res.User.GetName())
	_, err = ask(t, a, first.Token(t, claims(nil)))
	require.NoError(t, err)

	was = a.providers.Load()
	write(t, path, structured(second))
	require.Eventually(t, func() bool { return a.providers.Load() != was }, 2*time.Minute, time.Millisecond)
	res, err = ask(t, a, first.Token(t, claims(nil)))
	require.Nil(t, res, "whose provider was removed")
	require.NoError(t, err)
}

func TestWhatIsNotValidIsRefused(t *testing.T) {
	p := accesstest.Start(t)
	good := structured(p)
	for text, message := range map[string]string{
		"":                                  "empty config data",
		"apiVersion: v1\nkind: ConfigMap\n": "no kind",
		strings.Replace(good, "audiences:", "audience:", 1): "unknown field",
		strings.Replace(good, p.URL, "http://127.0.0.1", 1): "URL scheme must be https",
		strings.Replace(good, p.URL, own, 1): "must not overlap with " +
			"disallowed issuers",
		good + strings.SplitAfter(good, "jwt:\n")[1]:                                        "Duplicate value",
		strings.Replace(good, "claims.sub", "claims.sub +", 1):                              "Syntax error",
		strings.Replace(good, "- issuer:", "- issuer:\n    egressSelectorType: cluster", 1): "egress selector",
		good + "anonymous: {enabled: false, conditions: [{path: /x}]}\n": "enabled should be set to " +
			"true when conditions are defined",
	} {
		_, err := New(Config{
			AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"), text),
			Issuers:            []string{own},
			Log:                slog.New(slog.DiscardHandler),
		})
		require.ErrorContains(t, err, message, text)
	}
	_, err := New(Config{
		AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"), good+"anonymous: {enabled: true}\n"),
		Anonymous:          true,
		Log:                slog.New(slog.DiscardHandler),
	})
	require.ErrorContains(t, err, "--anonymous-auth flag cannot be set")
}

func TestAnonymousPaths(t *testing.T) {
	file := func(text string) *Access {
		return start(t, Config{
			AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"),
				"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+text),
		})
	}
	some := file("anonymous: {enabled: true, conditions: [{path: /version}]}")
	require.True(t, some.Anonymous("/version"))
	require.False(t, some.Anonymous("/version/x"))
	require.False(t, some.Anonymous("/api"))
	require.True(t, file("anonymous: {enabled: true}").Anonymous("/api"))
	require.False(t, file("anonymous: {enabled: false}").Anonymous("/api"))
	require.False(t, file("").Anonymous("/api"))
	require.True(t, start(t, Config{Anonymous: true}).Anonymous("/api"))
}

func TestOneProviderByOptions(t *testing.T) {
	p := accesstest.Start(t)
	o := OIDC{
		Issuer: p.URL, ClientID: "coracle", CAFile: write(t, filepath.Join(t.TempDir(), "ca"), p.CA()), UsernameClaim: "sub",
		GroupsClaim: "roles", GroupsPrefix: "g:",
		SigningAlgorithms: []string{"ES256"}, RequiredClaims: map[string]string{"tenant": "blue"},
	}
	res, err := ask(t, start(t, Config{OIDC: o}), p.Token(t, claims(nil)))
	require.NoError(t, err)
	require.Equal(t, p.URL+"#jane", res.User.GetName())
	require.Equal(t, []string{"g:dev"}, res.User.GetGroups())
	o.UsernamePrefix, o.RequiredClaims = "-", nil
	a := start(t, Config{OIDC: o})
	res, err = ask(t, a, p.Token(t, claims(nil)))
	require.NoError(t, err)
	require.Equal(t, "jane", res.User.GetName())
	o.SigningAlgorithms = []string{"RS256"}
	_, err = ask(t, start(t, Config{OIDC: o}), p.Token(t, claims(nil)))
	require.Error(t, err)
}

func TestKeysRotate(t *testing.T) {
	p := accesstest.Start(t)
	a := start(t, Config{AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"), structured(p))})
	_, err := ask(t, a, p.Token(t, claims(nil)))
	require.NoError(t, err)
	p.Rotate(t, "second")
	token := p.Token(t, claims(nil))
	require.Eventually(t, func() bool { // the provider is asked at most once a second
		res, _, _ := a.AuthenticateToken(context.Background(), token)
		return res != nil
	}, 2*time.Minute, 10*time.Millisecond)
	asked := p.Asked.Load()
	p.Rotate(t, "unknown")
	unknown := p.Token(t, claims(nil))
	p.Rotate(t, "third")
	began := time.Now()
	for range 200 {
		res, _, _ := a.AuthenticateToken(context.Background(), unknown)
		require.Nil(t, res)
	}
	require.LessOrEqual(t, p.Asked.Load()-asked, int64(time.Since(began)/retryKeys)+1,
		"tokens with unknown keys cost the provider little")
}

func TestProvidersThatMisbehave(t *testing.T) {
	for name, c := range map[string]struct {
		answer  http.HandlerFunc
		message string
	}{
		"endless": {accesstest.Endless, "more than"},
		"values": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"a":[` + strings.Repeat("[],", 300_000) + "[]]}"))
		}, "more than 100000 values"},
		"nonsense": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
			"failed to decode provider discovery object",
		},
		"another issuer": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"issuer":"https://evil","jwks_uri":"https://evil/keys"}`))
		}, "did not match the issuer"},
		"to plain HTTP": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "redirect to http://127.0.0.1:1/ refused"},
		"an error": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }, "500",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, good := accesstest.Start(t), accesstest.Start(t)
			p.Misbehave.Store(&c.answer)
			a := start(t, Config{AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"), structured(p, good))})
			res, err := ask(t, a, p.Token(t, claims(nil)))
			require.Nil(t, res)
			require.ErrorContains(t, err, c.message)
			res, err = ask(t, a, good.Token(t, claims(nil)))
			require.NoError(t, err)
			require.NotNil(t, res, "the others are not affected")
		})
	}
}

func TestAProviderThatHangs(t *testing.T) {
	p, good := accesstest.Start(t), accesstest.Start(t)
	let, reached := make(chan struct{}), make(chan struct{}, 1)
	hang := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{}; <-let })
	p.Misbehave.Store(&hang)
	t.Cleanup(func() { close(let) })
	a := start(t, Config{AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"), structured(p, good))})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := a.AuthenticateToken(ctx, p.Token(t, claims(nil)))
		ended <- err
	}()
	<-reached
	res, err := ask(t, a, good.Token(t, claims(nil)))
	require.NoError(t, err)
	require.NotNil(t, res, "the others are not affected")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
