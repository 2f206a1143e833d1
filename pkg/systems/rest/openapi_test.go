package rest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

func (w *world) operations() map[string]sets.Set[string] {
	w.t.Helper()
	var doc struct {
		Openapi string
		Paths   map[string]map[string]struct {
			Summary   string
			Responses map[string]any
		}
	}
	a := w.do("GET", descriptionPath, nil)
	require.Equal(w.t, http.StatusOK, a.status)
	a.into(w.t, &doc)
	require.Equal(w.t, "3.0.3", doc.Openapi)
	out := map[string]sets.Set[string]{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			require.NotEmpty(w.t, op.Summary)
			out[strings.ToUpper(method)+" "+path] = sets.KeySet(op.Responses)
		}
	}
	return out
}

type other struct{}

func (other) Routes() []Route {
	type moon struct {
		Phase string `json:"phase"`
	}
	return []Route{{
		Method: http.MethodGet, Path: "/api/v1/moons/{id}", Summary: "Get a moon",
		Answer: moon{},
		Handle: func(c *Call) error {
			if c.Param("id") != "ours" {
				return Refuse(http.StatusNotFound, "moon not found")
			}
			return c.Answer(http.StatusOK, moon{"waxing"})
		},
	}}
}

// TestOtherSystemsAddRoutes checks that added routes have the same guard and are in the same OpenAPI document.
func TestOtherSystemsAddRoutes(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Resources = append(c.Resources, other{}) })
	require.JSONEq(t, `{"phase":"waxing"}`, w.do("GET", "/api/v1/moons/ours", nil).body)
	require.Equal(t, http.StatusNotFound, w.do("GET", "/api/v1/moons/theirs", nil).status)
	require.Equal(t, http.StatusForbidden, w.do("GET", "/api/v1/moons/ours", nil, "Origin", "https://evil.example").status)
	require.True(t, w.operations()["GET /api/v1/moons/{id}"].Has("200"))
}

// TestTheDescriptionIsTrue sends requests to every route until each documented status has occurred, and fails on
// any undocumented one.
func TestTheDescriptionIsTrue(t *testing.T) {
	w := newWorld(t)
	s := newWorld(t, secure)
	left := w.operations()
	documented := w.operations()
	require.Len(t, left, len(w.server.router.routes), "no route is missing")

	key := func(method, path string) string {
		for _, r := range w.server.router.routes {
			if r.Method != method {
				continue
			}
			want, have := strings.Split(r.Path, "/"), strings.Split(strings.SplitN(path, "?", 2)[0], "/")
			if slices.EqualFunc(want, have, func(a, b string) bool { return a == b || strings.HasPrefix(a, "{") }) {
				return method + " " + r.Path
			}
		}
		t.Fatalf("no route for %s %s", method, path)
		return ""
	}
	send := func(on *world, method, path string, body any, headers ...string) answer {
		t.Helper()
		a := on.do(method, path, body, headers...)
		k, got := key(method, path), strconv.Itoa(a.status)
		require.True(t, documented[k].Has(got), "%s answered %s, which is not documented: %s", k, got, a.body)
		left[k].Delete(got)
		return a
	}
	expect := func(status int, method, path string, body any, headers ...string) answer {
		t.Helper()
		a := send(w, method, path, body, headers...)
		require.Equal(t, status, a.status, "%s %s: %s", method, path, a.body)
		return a
	}

	// Every route has these statuses.
	for _, r := range w.server.router.routes {
		path := strings.NewReplacer("{id}", "nothing").Replace(r.Path)
		expect(http.StatusForbidden, r.Method, path, nil, "Origin", "https://evil.example")
		if !r.Public {
			require.Equal(t, http.StatusUnauthorized, send(s, r.Method, path, nil).status)
		}
		if r.Body != nil {
			expect(http.StatusBadRequest, r.Method, path, "{")
			expect(http.StatusRequestEntityTooLarge, r.Method, path, `"`+strings.Repeat("a", maxBody)+`"`)
		}
		if strings.Contains(r.Path, "{id}") {
			body := any(nil)
			if r.Body != nil {
				body = `{"status":"running"}`
			}
			expect(http.StatusNotFound, r.Method, path, body)
		}
	}
	valid := map[string]string{
		"POST /api/v1/tasks":          `{"name":"a","image":"i"}`,
		"POST /api/v1/pods":           `{"name":"p","containers":[{"name":"c","image":"i"}]}`,
		"PATCH /api/v1/pods/{id}":     `{"nodeName":"ours"}`,
		"POST /api/v1/services":       `{"name":"s","selector":{"app":"a"},"ports":[{"port":80}]}`,
		"POST /api/v1/nodes/register": `{"hostname":"127.0.0.1","port":8081,"cpu":"2","memory":"2Gi"}`,
		"POST /api/v1/nodes":          `{"hostname":"127.0.0.1","port":8082,"cpu":"2","memory":"2Gi"}`,
		"POST /api/v1/resources":      `{"cluster_id":"c","namespace":"n","kind":"ConfigMap","name":"a","desired_spec":{}}`,
		"PUT /api/v1/resources/{id}":  `{}`, "PATCH /api/v1/resources/{id}": `{}`,
		"POST /api/v1/resources/{id}/rollback": `{"revision":1}`,
		"POST /api/v1/bundles":                 `{"name":"b","cluster_id":"c","inline":"{apiVersion: v1, kind: Namespace, metadata: {name: a}}"}`, "PUT /api/v1/bundles/{id}": `{}`,
		"POST /api/v1/bundles/{id}/approve": `{"content":"x"}`, "POST /api/v1/resources/{id}/approve": `{"generation":1}`,
		"POST /api/v1/heartbeat": `{"nodeId":"nothing"}`, "PUT /api/v1/services/{id}": `{}`,
		"PUT /api/v1/tasks/{id}/status": `{"status":"running"}`, "PUT /api/v1/pods/{id}/status": `{"status":"running"}`,
	}
	for err, status := range map[error]int{
		errors.New("the store is on fire"): http.StatusInternalServerError,
		context.DeadlineExceeded:           http.StatusServiceUnavailable,
	} {
		w.broken.fail(err)
		for _, r := range w.server.router.routes {
			if r.Public {
				continue
			}
			var body any
			if r.Body != nil {
				body = valid[r.Method+" "+r.Path]
			}
			expect(status, r.Method, strings.NewReplacer("{id}", "x").Replace(r.Path), body)
		}
	}
	w.broken.fail(nil)

	w.server.maxWorkers = 0
	for _, path := range []string{"/api/v1/nodes/register", "/api/v1/nodes"} {
		expect(http.StatusTooManyRequests, "POST", path, valid["POST "+path])
	}
	w.server.maxWorkers = maxWorkers
	var worker wire.Node
	expect(http.StatusCreated, "POST", "/api/v1/nodes", valid["POST /api/v1/nodes"])
	expect(http.StatusCreated, "POST", "/api/v1/nodes/register", valid["POST /api/v1/nodes/register"]).into(t, &worker)
	expect(http.StatusOK, "POST", "/api/v1/nodes/"+worker.NodeID+"/heartbeat", nil)
	expect(http.StatusOK, "POST", "/api/v1/heartbeat", `{"nodeId":"`+worker.NodeID+`"}`)
	expect(http.StatusNotFound, "POST", "/api/v1/heartbeat", `{"nodeId":"nothing"}`)
	expect(http.StatusOK, "GET", "/api/v1/nodes", nil)
	expect(http.StatusBadRequest, "GET", "/api/v1/nodes?limit=x", nil)
	w.node("ours")

	var task, second wire.Task
	expect(http.StatusCreated, "POST", "/api/v1/tasks", valid["POST /api/v1/tasks"]).into(t, &task)
	expect(http.StatusCreated, "POST", "/api/v1/tasks", valid["POST /api/v1/tasks"], idempotencyHeader, "k").into(t,
		&second)
	expect(http.StatusConflict, "POST", "/api/v1/tasks", `{"name":"a","image":"other"}`, idempotencyHeader, "k")
	at := "/api/v1/tasks/" + task.TaskID
	expect(http.StatusOK, "GET", at, nil)
	expect(http.StatusOK, "GET", at+"/status", nil)
	expect(http.StatusOK, "GET", "/api/v1/tasks", nil)
	expect(http.StatusBadRequest, "GET", "/api/v1/tasks?limit=x", nil)
	expect(http.StatusConflict, "PUT", at+"/status", `{"status":"running"}`)
	expect(http.StatusBadRequest, "GET", at+"/logs", nil)
	expect(http.StatusBadRequest, "GET", at+"/logs/stream", nil)
	w.run(task.TaskID, worker.NodeID, 1)
	expect(http.StatusOK, "PUT", at+"/status", `{"status":"running"}`)
	w.run(second.TaskID, "ours", 1)
	at = "/api/v1/tasks/" + second.TaskID
	close(w.agent.more)
	expect(http.StatusOK, "GET", at+"/logs", nil)
	expect(http.StatusOK, "GET", at+"/logs/stream", nil)

	var pod wire.Pod
	expect(http.StatusCreated, "POST", "/api/v1/pods", valid["POST /api/v1/pods"]).into(t, &pod)
	w.followNamespaces()
	expect(http.StatusCreated, "POST", "/api/v1/pods",
		`{"name":"p","namespace":"nowhere","containers":[{"name":"c","image":"i"}]}`)
	expect(http.StatusBadRequest, "POST", "/api/v1/pods",
		`{"name":"p","namespace":"No Name","containers":[{"name":"c","image":"i"}]}`)
	ptr := "/api/v1/pods/" + pod.PodID
	expect(http.StatusOK, "GET", ptr, nil)
	expect(http.StatusOK, "GET", ptr+"/status", nil)
	expect(http.StatusOK, "GET", "/api/v1/pods", nil)
	expect(http.StatusBadRequest, "GET", "/api/v1/pods?limit=x", nil)
	expect(http.StatusBadRequest, "GET", ptr+"/logs", nil)
	expect(http.StatusBadRequest, "GET", ptr+"/logs/stream", nil)
	expect(http.StatusBadRequest, "PATCH", ptr, `{}`)
	expect(http.StatusOK, "PATCH", ptr, `{"spec":{"nodeName":"`+worker.NodeID+`"}}`)
	expect(http.StatusConflict, "PATCH", ptr, `{"nodeName":"ours"}`)
	expect(http.StatusOK, "PUT", ptr+"/status", `{"status":"succeeded"}`)
	expect(http.StatusConflict, "PUT", ptr+"/status", `{"status":"running"}`)
	expect(http.StatusCreated, "POST", "/api/v1/pods", valid["POST /api/v1/pods"]).into(t, &pod)
	ptr = "/api/v1/pods/" + pod.PodID
	w.bind(pod.PodID, "ours")
	expect(http.StatusOK, "GET", ptr+"/logs", nil)
	expect(http.StatusOK, "GET", ptr+"/logs/stream", nil)

	w.agent.fail(true)
	for _, path := range []string{at + "/logs", at + "/logs/stream", ptr + "/logs", ptr + "/logs/stream"} {
		expect(http.StatusBadGateway, "GET", path, nil)
	}
	for range maxStreams {
		w.server.streams <- struct{}{}
	}
	for _, path := range []string{at + "/logs/stream", ptr + "/logs/stream"} {
		expect(http.StatusServiceUnavailable, "GET", path, nil)
	}
	expect(http.StatusOK, "DELETE", ptr, nil)

	expect(http.StatusCreated, "POST", "/api/v1/services", valid["POST /api/v1/services"])
	expect(http.StatusConflict, "POST", "/api/v1/services", valid["POST /api/v1/services"])
	expect(http.StatusCreated, "POST", "/api/v1/services",
		`{"name":"s","namespace":"nowhere","selector":{"app":"a"},"ports":[{"port":80}]}`)
	expect(http.StatusOK, "GET", "/api/v1/services", nil)
	expect(http.StatusBadRequest, "GET", "/api/v1/services?limit=x", nil)
	expect(http.StatusOK, "GET", "/api/v1/services/s", nil)
	expect(http.StatusOK, "PUT", "/api/v1/services/s", `{"sessionAffinity":"ClientIP"}`)
	expect(http.StatusOK, "GET", "/api/v1/services/s/endpoints", nil)
	expect(http.StatusOK, "DELETE", "/api/v1/services/s", nil)

	made := w.resource(valid["POST /api/v1/resources"])
	resource := "/api/v1/resources/" + strconv.FormatInt(made.ID, 10)
	expect(http.StatusCreated, "POST", "/api/v1/resources", valid["POST /api/v1/resources"])
	expect(http.StatusOK, "GET", "/api/v1/resources", nil)
	expect(http.StatusBadRequest, "GET", "/api/v1/resources?limit=x", nil)
	expect(http.StatusOK, "GET", resource, nil)
	expect(http.StatusOK, "PUT", resource, `{"desired_spec":{},"suspend":true}`)
	expect(http.StatusConflict, "PUT", resource, `{"suspend":true,"generation":9}`)
	expect(http.StatusConflict, "PATCH", resource, `{"suspend":true,"generation":9}`)
	expect(http.StatusConflict, "POST", resource+"/approve", `{"generation":2}`)
	expect(http.StatusOK, "PATCH", resource, `{"approval":"Manual"}`)
	expect(http.StatusOK, "POST", resource+"/approve", `{"generation":3}`)
	expect(http.StatusOK, "GET", resource+"/history", nil)
	expect(http.StatusConflict, "POST", resource+"/rollback", `{"revision":9}`)
	expect(http.StatusOK, "PATCH", resource, `{"desired_spec":{"data":{"a":"b"}}}`)
	expect(http.StatusOK, "POST", resource+"/rollback", `{"generation":3}`)
	expect(http.StatusOK, "DELETE", resource, nil)
	for _, table := range []string{"resource_current_states", "resource_applied_states", "clusters"} {
		expect(http.StatusOK, "GET", "/api/v1/"+table, nil)
		expect(http.StatusBadRequest, "GET", "/api/v1/"+table+"?limit=x", nil)
	}
	w.create(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: kontrol.ClusterSpec{Pull: true}})
	expect(http.StatusOK, "GET", "/api/v1/clusters/edge", nil)

	var one wire.Bundle
	expect(http.StatusCreated, "POST", "/api/v1/bundles", valid["POST /api/v1/bundles"]).into(t, &one)
	expect(http.StatusConflict, "POST", "/api/v1/bundles", valid["POST /api/v1/bundles"])
	bundle := "/api/v1/bundles/" + strconv.FormatInt(one.ID, 10)
	expect(http.StatusOK, "GET", "/api/v1/bundles", nil)
	expect(http.StatusBadRequest, "GET", "/api/v1/bundles?limit=x", nil)
	expect(http.StatusOK, "GET", bundle, nil)
	expect(http.StatusConflict, "PUT", bundle, `{"paused":true,"generation":9}`)
	expect(http.StatusOK, "PUT", bundle, `{"approval":"Manual"}`)
	expect(http.StatusConflict, "POST", bundle+"/approve", `{"content":"x"}`)
	w.read("b", "sha256:1")
	expect(http.StatusOK, "POST", bundle+"/approve", `{"content":"sha256:1"}`)
	expect(http.StatusOK, "DELETE", bundle, nil)

	expect(http.StatusOK, "POST", "/api/v1/prune", nil)
	expect(http.StatusOK, "POST", "/api/v1/nodes/"+worker.NodeID+"/deregister", nil)
	expect(http.StatusOK, "GET", "/health", nil)
	expect(http.StatusOK, "GET", descriptionPath, nil)

	for k, statuses := range left {
		require.Empty(t, sets.List(statuses), "%s has statuses that no request got", k)
	}
}
