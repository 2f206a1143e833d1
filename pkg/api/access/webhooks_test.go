package access

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/coracle-dev/coracle/pkg/api/access/accesstest"
)

// kubeconfig returns the path of a kubeconfig for the server.
func kubeconfig(t testing.TB, s *httptest.Server) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "kubeconfig"), fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, s.URL))
}

func server(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s
}

func TestATokenWebhook(t *testing.T) {
	var asked atomic.Int64
	s := server(t, func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		var r authenticationv1.TokenReview
		if json.NewDecoder(req.Body).Decode(&r) != nil {
			return
		}
		switch r.Spec.Token {
		case "good":
			r.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, User: authenticationv1.UserInfo{Username: "jane", Groups: []string{"dev"}},
			}
		case "endless":
			accesstest.Endless(w, req)
			return
		case "yaml", "values":
			_, _ = w.Write([]byte(costly[r.Spec.Token]))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r)
	})
	a := start(t, Config{Webhook: Webhook{Kubeconfig: kubeconfig(t, s), Version: "v1", TTL: time.Minute}})
	for range 3 {
		res, err := ask(t, a, "good")
		require.NoError(t, err)
		require.Equal(t, "jane", res.User.GetName())
		res, err = ask(t, a, "bad")
		require.NoError(t, err)
		require.Nil(t, res)
	}
	require.Equal(t, int64(2), asked.Load(), "answers are remembered")
	_, err := ask(t, a, "endless")
	require.ErrorContains(t, err, "more than")
	// Shapes that take a hundred times the memory of their text are refused before they are decoded.
	_, err = ask(t, a, "yaml")
	require.ErrorContains(t, err, "no JSON object")
	_, err = ask(t, a, "values")
	require.ErrorContains(t, err, "more than 131072 values")
}

// costly are answers of 1 MB that take a hundred times the memory once decoded.
var costly = map[string]string{
	"yaml":   "kind: TokenReview\na: [" + strings.Repeat("[],", 300_000) + "[]]",
	"values": `{"kind":"TokenReview","a":[` + strings.Repeat("[],", 300_000) + "[]]}",
}

// As upstream, a token that a provider rejects is passed to the webhook. If both reject it, both errors are
// reported.
func TestATokenThatAProviderRefusesIsAskedOfTheWebhook(t *testing.T) {
	p := accesstest.Start(t)
	expired := p.Token(t, claims(map[string]any{"exp": time.Now().Unix() - 600}))
	s := server(t, func(w http.ResponseWriter, req *http.Request) {
		var r authenticationv1.TokenReview
		if json.NewDecoder(req.Body).Decode(&r) != nil {
			return
		}
		r.Status = authenticationv1.TokenReviewStatus{
			Authenticated: r.Spec.Token == expired, User: authenticationv1.UserInfo{Username: "jane"},
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r)
	})
	a := start(t, Config{
		AuthenticationFile: write(t, filepath.Join(t.TempDir(), "f"), structured(p)),
		Webhook:            Webhook{Kubeconfig: kubeconfig(t, s), Version: "v1"},
	})
	res, err := ask(t, a, expired)
	require.NoError(t, err)
	require.Equal(t, "jane", res.User.GetName())
	_, err = ask(t, a, p.Token(t, claims(map[string]any{"exp": time.Now().Unix() - 700})))
	require.ErrorContains(t, err, "token is expired")
}

func TestTheChainOfAuthorizers(t *testing.T) {
	var asked atomic.Int64
	s := server(t, func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		var r authorizationv1.SubjectAccessReview
		if json.NewDecoder(req.Body).Decode(&r) != nil {
			return
		}
		switch r.Spec.User {
		case "jane":
			r.Status.Allowed = true
		case "mallory":
			r.Status.Denied, r.Status.Reason = true, "not you"
		case "lost":
			http.Error(w, "no", http.StatusBadRequest)
			return
		case "yaml":
			_, _ = w.Write([]byte(costly[r.Spec.User]))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r)
	})
	file := func(policy, more string) string {
		return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: mine
  webhook:
    timeout: 30s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: %s
    authorizedTTL: 1m
    unauthorizedTTL: 1m
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: has(request.resourceAttributes) && request.resourceAttributes.namespace != 'kube-system'
%s`, policy, kubeconfig(t, s), more)
	}
	const locals = "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"
	path := write(t, filepath.Join(t.TempDir(), "f"), file("Deny", locals))
	a := start(t, Config{AuthorizationFile: path})
	rbac := map[string]authorizer.AuthorizerFunc{
		Node: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", nil
		},
		RBAC: func(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
			if attrs.GetUser().GetName() == "root" {
				return authorizer.DecisionAllow, "RBAC", nil
			}
			return authorizer.DecisionNoOpinion, "no rule", nil
		},
	}
	decide := func(name, namespace string) (authorizer.Decision, string, error) {
		return a.Authorize(t.Context(),
			authorizer.AttributesRecord{
				User:            &user.DefaultInfo{Name: name},
				Verb:            "get",
				Namespace:       namespace,
				Resource:        "pods",
				ResourceRequest: true,
			}, rbac)
	}
	for _, c := range []struct {
		name, namespace string
		want            authorizer.Decision
		reason          string
	}{
		{"jane", "d", authorizer.DecisionAllow, ""}, {"mallory", "d", authorizer.DecisionDeny, "not you"},
		{"root", "d", authorizer.DecisionAllow, "RBAC"},
		{"nobody", "d", authorizer.DecisionNoOpinion, "no rule"},
		{"jane", "kube-system", authorizer.DecisionNoOpinion, "no rule"}, {"lost", "d", authorizer.DecisionDeny, ""},
	} {
		d, reason, _ := decide(c.name, c.namespace)
		require.Equal(t, c.want, d, "%v", c)
		require.Equal(t, c.reason, reason, "%v", c)
	}
	refused, _, err := decide("yaml", "d")
	require.Equal(t, authorizer.DecisionDeny, refused)
	require.ErrorContains(t, err, "no JSON object")
	before := asked.Load()
	_, _, err = decide("jane", "d")
	require.NoError(t, err)
	require.Equal(t, before, asked.Load(), "answers are remembered")

	was := a.chain.Load()
	write(t, path, file("NoOpinion", locals))
	require.Eventually(t, func() bool { return a.chain.Load() != was }, 2*time.Minute, time.Millisecond)
	d, _, err := decide("lost", "d")
	require.Equal(t, authorizer.DecisionNoOpinion, d)
	require.Error(t, err)
	require.True(t, a.Webhooks())
	require.True(t, a.Has(RBAC))

	for text, message := range map[string]string{
		file("Maybe", locals):                        "failurePolicy",
		file("Deny", "- {type: ABAC, name: abac}\n"): "Unsupported value: \"ABAC\"",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n": "at least one authorization mode",
	} {
		_, err := New(Config{AuthorizationFile: write(t, filepath.Join(t.TempDir(), "f"), text)})
		require.ErrorContains(t, err, message)
	}
}
