package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/coracle-dev/coracle/pkg/api/auditlog"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, resources: [{resources: [nodes]}]}
- {level: Metadata, resources: [{resources: [secrets]}]}
- {level: Request, verbs: [patch, delete, watch]}
- {level: RequestResponse, omitManagedFields: true}
`

// auditedWorld returns a world with an audit log, and a function that returns the logged events.
func auditedWorld(t *testing.T) (*world, func() []auditv1.Event) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/policy.yaml", []byte(auditPolicy), 0o600))
	path := filepath.Join(dir, "audit.log")
	l, err := auditlog.Open(auditlog.Config{
		PolicyFile: dir + "/policy.yaml",
		Path:       path,
		Logger:     slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	w := newWorld(t, func(c *Config) {
		c.Audit = l
		c.Tokens = authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			return nil, false, nil
		})
	})
	return w, func() (events []auditv1.Event) {
		w.stop()
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range bytes.Lines(raw) {
			var e auditv1.Event
			require.NoError(t, json.Unmarshal(line, &e), "%s", line)
			require.Equal(t, "audit.k8s.io/v1", e.APIVersion)
			events = append(events, e)
		}
		require.Zero(t, l.Dropped("log"))
		return events
	}
}

func TestAudit(t *testing.T) {
	w, written := auditedWorld(t)
	w.namespace("d")
	const maps, secrets = "/api/v1/namespaces/d/configmaps", "/api/v1/namespaces/d/secrets"
	w.do(w.http, "GET", "/api/v1/nodes", "")
	w.do(w.http, "POST", secrets,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"a":"very secret"}}`)
	created := w.do(w.http, "POST", maps, someMap, "Audit-Id", "of-the-client", "User-Agent", "tester/1")
	require.Equal(t, 201, created.code)
	w.do(w.http, "PATCH", maps+"/m?fieldManager=x", "data: {c: d}", "Content-Type", "application/apply-patch+yaml")
	w.do(w.http, "PATCH", maps+"/m", `{"data":{"c":"d"}}`, "Content-Type", "application/merge-patch+json")
	w.do(w.http, "GET", maps, "")
	w.do(w.as("ann"), "GET", maps+"/m", "")
	w.do(w.http, "GET", maps+"/none", "", "Impersonate-User", "joe", "Impersonate-Group", "system:masters")
	w.do(w.anonymous(), "GET", maps, "", "Authorization", "Bearer wrong")
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+maps+"?watch=true", nil)
	require.NoError(t, err)
	res, err := w.http.Do(req)
	require.NoError(t, err)
	cancel()
	_ = res.Body.Close()

	type seen struct{ stage, level, user, verb, resource, name string }
	find := func(events []auditv1.Event, want seen) *auditv1.Event {
		for i := range events {
			e := &events[i]
			got := seen{string(e.Stage), string(e.Level), e.User.Username, e.Verb, "", ""}
			if e.ObjectRef != nil {
				got.resource, got.name = e.ObjectRef.Resource, e.ObjectRef.Name
			}
			if got == want {
				return e
			}
		}
		t.Fatalf("no event %+v", want)
		return nil
	}
	events := written()
	const complete = "ResponseComplete"
	for _, e := range events {
		require.NotEqual(t, "RequestReceived", string(e.Stage), "omitted")
		if e.ObjectRef != nil {
			require.NotEqual(t, "nodes", e.ObjectRef.Resource, "level None")
		}
		raw, err := json.Marshal(e)
		require.NoError(t, err)
		require.NotContains(t, string(raw), "very secret")
		require.NotContains(t, string(raw), "managedFields")
	}
	e := find(events, seen{complete, "Metadata", "admin", "create", "secrets", "s"})
	require.Nil(t, e.RequestObject)
	require.Nil(t, e.ResponseObject)

	e = find(events, seen{complete, "RequestResponse", "admin", "create", "configmaps", "m"})
	require.EqualValues(t, "of-the-client", e.AuditID)
	require.Equal(t, "of-the-client", created.header.Get("Audit-Id"))
	require.Equal(t, "tester/1", e.UserAgent)
	require.Equal(t, maps, e.RequestURI)
	require.Equal(t, []string{"127.0.0.1"}, e.SourceIPs)
	require.EqualValues(t, 201, e.ResponseStatus.Code)
	require.Equal(t, "allow", e.Annotations["authorization.k8s.io/decision"])
	require.Contains(t, string(e.RequestObject.Raw), `"data":{"a":"b"}`)
	require.Contains(t, string(e.ResponseObject.Raw), `"resourceVersion"`)

	patches := 0
	for _, e := range events {
		if e.Verb != "patch" {
			continue
		}
		patches++
		require.Nil(t, e.ResponseObject)
		require.Contains(t, []string{`"data: {c: d}"`, `{"data":{"c":"d"}}`}, string(e.RequestObject.Raw))
	}
	require.Equal(t, 2, patches)
	e = find(events, seen{complete, "RequestResponse", "admin", "list", "configmaps", ""})
	require.Contains(t, string(e.ResponseObject.Raw), `"kind":"ConfigMapList"`)
	e = find(events, seen{complete, "RequestResponse", "ann", "get", "configmaps", "m"})
	require.EqualValues(t, 403, e.ResponseStatus.Code)
	require.Equal(t, "forbid", e.Annotations["authorization.k8s.io/decision"])
	e = find(events, seen{complete, "RequestResponse", "admin", "get", "configmaps", "none"})
	require.Equal(t, "joe", e.ImpersonatedUser.Username)
	require.EqualValues(t, 404, e.ResponseStatus.Code)
	e = find(events, seen{"ResponseStarted", "RequestResponse", "", "list", "configmaps", ""})
	require.EqualValues(t, 401, e.ResponseStatus.Code)
	find(events, seen{"ResponseStarted", "Request", "admin", "watch", "configmaps", ""})
	find(events, seen{complete, "Request", "admin", "watch", "configmaps", ""})
}

// With an audit log, streams and watches still reach the connection behind upstream's filter.
func TestAuditedRequestsKeepTheirBounds(t *testing.T) {
	w, written := auditedWorld(t)
	w.allow("ann")
	r := w.do(w.as("ann"), "GET", "/api/v1/namespaces?timeoutSeconds=1&watch=true&allowWatchBookmarks=true", "")
	require.Equal(t, 200, r.code)
	require.Contains(t, string(r.body), `"type":"BOOKMARK"`)
	for _, s := range w.srv.fair.Stats() {
		if s.Schema == "global-default" {
			require.EqualValues(t, 1, s.Dispatched)
			require.Zero(t, s.Executing)
		}
	}
	require.True(t, strings.HasPrefix(string(written()[0].Stage), "Response"))
}
