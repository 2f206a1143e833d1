package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

func (w *world) resource(body string) wire.Resource {
	w.t.Helper()
	a := w.do("POST", "/api/v1/resources", body)
	require.Equal(w.t, http.StatusCreated, a.status, a.body)
	var r wire.Resource
	a.into(w.t, &r)
	return r
}

// synced writes the status of a resource in sync on a cluster, as the reconciler and the watcher would.
func (w *world) synced(name, cluster string) {
	w.t.Helper()
	var r kontrol.Resource
	require.NoError(w.t, w.admin.Get(w.t.Context(), ctrl.ObjectKey{Name: name}, &r))
	subject := kontrol.Subject{
		Resource:    name,
		ResourceUID: string(r.UID),
		ResourceID:  r.Status.ID,
		Cluster:     cluster,
		Target:      kontrol.TargetOf(&r),
	}
	meta := metav1.ObjectMeta{Name: kontrol.StateName(name, cluster)}
	object := runtime.RawExtension{Raw: []byte(`{"seen":true}`)}
	w.create(&kontrol.AppliedState{
		ObjectMeta: meta,
		State: kontrol.Applied{
			Subject:    subject,
			Generation: r.Generation,
			Revision:   *r.Spec.Revision,
			Object:     object,
			Status:     kontrol.ApplyApplied,
		},
	})
	w.create(&kontrol.CurrentState{
		ObjectMeta: meta,
		State: kontrol.Current{
			Subject:         subject,
			Generation:      r.Generation,
			Revision:        *r.Spec.Revision,
			Object:          object,
			ResourceVersion: "77",
			Present:         true,
		},
	})
	next := r.DeepCopy()
	next.Status.State, next.Status.ObservedGeneration = kontrol.StateSynced, r.Generation
	require.NoError(w.t, w.admin.Status().Update(w.t.Context(), next))
}

// TestAResourceHasTheSeedsColumns follows a resource from creation to deletion. Its ID stays the same.
func TestAResourceHasTheSeedsColumns(t *testing.T) {
	w := newWorld(t)
	made := w.resource(`{"cluster_id":"edge","namespace":"shop","kind":"ConfigMap","name":"greeting","desired_spec":{"data":{"hello":"world","n":"1"}}}`)
	require.Positive(t, made.ID)
	require.Equal(t, "OutOfSync", made.State, "nothing was applied")
	require.JSONEq(t,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"shop","name":"greeting"},"data":{"hello":"world","n":"1"}}`, string(made.DesiredSpec))
	require.EqualValues(t, 1, made.Generation)
	require.EqualValues(t, 1, made.Revision)

	w.synced(made.ResourceName, "edge")
	at := fmt.Sprintf("/api/v1/resources/%d", made.ID)
	var raw map[string]any
	w.do("GET", at, nil).into(t, &raw)
	for column, want := range map[string]any{
		"cluster_id": "edge",
		"namespace":  "shop",
		"kind":       "ConfigMap",
		"name":       "greeting",
		"state":      "Synced",
	} {
		require.Equal(t, want, raw[column], column)
	}
	current, applied := raw["current_states"].([]any)[0].(map[string]any),
		raw["applied_states"].([]any)[0].(map[string]any)
	require.Equal(t, "77", current["k8s_resource_version"])
	require.Equal(t, "Applied", applied["status"])
	for _, state := range []map[string]any{current, applied} {
		require.Equal(t, map[string]any{"seen": true}, state["spec"])
		require.EqualValues(t, made.ID, state["resource_id"])
		require.EqualValues(t, 1, state["generation"])
		require.EqualValues(t, 1, state["revision"])
	}

	// The revision increases, or can be set, even back. The generation always increases.
	var r wire.Resource
	send := func(method, body string) {
		t.Helper()
		a := w.do(method, at, body)
		require.Equal(t, http.StatusOK, a.status, a.body)
		r = wire.Resource{}
		a.into(t, &r)
		require.Equal(t, made.ID, r.ID)
	}
	send("PUT", `{"desired_spec":{"data":{"hello":"sea"}}}`)
	require.Equal(t, [2]int64{2, 2}, [2]int64{r.Generation, r.Revision})
	require.Equal(t, "OutOfSync", r.State)
	send("PUT", `{"desired_spec":{"data":{"hello":"world"}},"revision":1,"generation":2}`)
	require.Equal(t, [2]int64{3, 1}, [2]int64{r.Generation, r.Revision})
	send("PATCH", `{"mode":"Report","suspend":true,"deletion_policy":"Orphan"}`)
	require.Equal(t, []any{"Report", true, "Orphan"}, []any{r.Mode, r.Suspend, r.DeletionPolicy})
	require.JSONEq(t,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"shop","name":"greeting"},"data":{"hello":"world"}}`,
		string(r.DesiredSpec))

	// Windows and approval: each edit needs its own approval.
	send("PATCH", `{"approval":"Manual","windows":[{"kind":"Allow","schedule":"0 22 * * 1-5","duration":"90m","time_zone":"Europe/Berlin"},{"kind":"Deny","schedule":"0 0 24 12 *","duration":"72h"}]}`)
	require.Equal(t,
		[]wire.SyncWindow{
			{Kind: "Allow", Schedule: "0 22 * * 1-5", Duration: "1h30m0s", TimeZone: "Europe/Berlin"},
			{Kind: "Deny", Schedule: "0 0 24 12 *", Duration: "72h0m0s"},
		}, r.Windows)
	require.Equal(t, []any{"Manual", int64(5), int64(0)}, []any{r.Approval, r.Generation, r.ApprovedGeneration})
	require.Contains(t, w.do("POST", at+"/approve", `{"generation":4}`).says(t), "generation 5 by now, not 4")
	w.do("POST", at+"/approve", `{"generation":5}`).into(t, &r)
	require.EqualValues(t, 5, r.ApprovedGeneration)
	send("PATCH", `{"windows":[]}`)
	require.Equal(t, []any{"Manual", int64(6), int64(5), 0},
		[]any{r.Approval, r.Generation, r.ApprovedGeneration, len(r.Windows)}, "the new generation is not approved")
	send("PATCH", `{"approval":"None"}`)
	require.Contains(t, w.do("POST", at+"/approve", `{"generation":7}`).says(t), "needs no approval")

	stale := w.do("PATCH", at, `{"suspend":false,"generation":2}`)
	require.Equal(t, http.StatusConflict, stale.status)
	require.Contains(t, stale.says(t), "generation 7")

	// A client can send back the object that it has read.
	whole, err := json.Marshal(r)
	require.NoError(t, err)
	send("PUT", string(whole))
	require.EqualValues(t, 7, r.Generation, "nothing has changed")

	// PUT replaces all but the clusters and the identity, PATCH merges.
	send("PATCH", `{"desired_spec":{"data":{"more":"1"}},"wave":3,"depends_on":["first"],"ignore":{"fields":["data.x"]},
		"overrides":[{"clusterName":"edge","patch":[{"op":"replace","path":"/data/more","value":"2"}]}]}`)
	require.Contains(t, string(r.DesiredSpec), `{"hello":"world","more":"1"}`)
	require.Equal(t, []any{3, []string{"first"}, "Report", 1}, []any{r.Wave, r.DependsOn, r.Mode, len(r.Overrides)})
	send("PATCH", `{"desired_spec":{"data":{"hello":null}},"wave":null}`)
	require.Contains(t, string(r.DesiredSpec), `"data":{"more":"1"}`)
	require.Equal(t, []any{0, []string{"first"}}, []any{r.Wave, r.DependsOn})
	send("PUT", `{"desired_spec":{"data":{"new":"1"}}}`)
	require.Equal(t, []any{"edge", "Correct", false, 0, 0},
		[]any{r.ClusterID, r.Mode, r.Suspend, len(r.DependsOn), len(r.Overrides)})
	require.Contains(t, string(r.DesiredSpec), `"data":{"new":"1"}`)

	var history []wire.Revision
	w.do("GET", at+"/history", nil).into(t, &history)
	require.EqualValues(t, 10, history[0].Generation)
	require.Len(t, history[1].Overrides, 1)
	w.do("POST", at+"/rollback", `{"generation":9}`).into(t, &r)
	require.Contains(t, string(r.DesiredSpec), `"data":{"more":"1"}`)
	require.EqualValues(t, 11, r.Generation)
	require.Equal(t, http.StatusConflict, w.do("POST", at+"/rollback", `{"revision":99}`).status)
	require.Equal(t, http.StatusBadRequest, w.do("POST", at+"/rollback", `{}`).status)

	// The tables of the states, beside the nested form.
	for _, table := range []string{"resource_current_states", "resource_applied_states"} {
		for query, want := range map[string]int{
			"": 1, "cluster=edge": 1, "cluster=other": 0, fmt.Sprintf("resource_id=%d", made.ID): 1, "resource_id=1": 0,
		} {
			var rows []map[string]any
			w.do("GET", "/api/v1/"+table+"?"+query, nil).into(t, &rows)
			require.Len(t, rows, want, table+query)
		}
	}

	require.Equal(t, http.StatusOK, w.do("DELETE", at, nil).status)
	w.do("GET", at, nil).into(t, &r)
	require.Equal(t, "Terminating", r.State, "its clusters have the object")
}

// TestTheDesiredSpecMayBeTheSpecAlone checks that the schema of a kind tells its spec from the object.
func TestTheDesiredSpecMayBeTheSpecAlone(t *testing.T) {
	w := newWorld(t)
	for body, want := range map[string]string{
		`"kind":"Deployment","desired_spec":{"replicas":3}`:                              `"spec":{"replicas":3}`,
		`"kind":"Deployment","desired_spec":{"spec":{"replicas":3}}`:                     `"spec":{"replicas":3}`,
		`"kind":"Deployment","desired_spec":{"metadata":{"labels":{"a":"b"}}}`:           `"labels":{"a":"b"}`,
		`"kind":"ConfigMap","desired_spec":{"data":{"a":"b"}}`:                           `"data":{"a":"b"}`,
		`"kind":"Service","desired_spec":{"ports":[],"selector":{}}`:                     `"spec":{"ports":[],"selector":{}}`,
		`"kind":"Moon","api_version":"space.example/v1","desired_spec":{"phase":1}`:      `"spec":{"phase":1}`,
		`"kind":"Moon","api_version":"space.example/v1","desired_spec":{"spec":{"p":1}}`: `"spec":{"p":1}`,
	} {
		made := w.resource(`{"cluster_id":"edge","namespace":"x","name":"a",` + body + `}`)
		require.Contains(t, string(made.DesiredSpec), want, body)
	}
	made := w.resource(`{"cluster_id":"edge","namespace":"x","name":"a","kind":"Deployment","desired_spec":{"replicas":3}}`)
	a := w.do("PATCH", fmt.Sprintf("/api/v1/resources/%d", made.ID), `{"desired_spec":{"paused":true}}`)
	require.Contains(t, a.body, `"spec":{"paused":true,"replicas":3}`)
}

func TestClusters(t *testing.T) {
	w := newWorld(t)
	w.create(&kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "edge", Labels: map[string]string{"env": "prod"}},
		Spec:       kontrol.ClusterSpec{Pull: true},
	})
	var list []wire.Cluster
	w.do("GET", "/api/v1/clusters", nil).into(t, &list)
	require.Len(t, list, 1)
	require.Equal(t, []any{"edge", true, "Connecting", "prod"},
		[]any{list[0].ClusterID, list[0].Pull, list[0].State, list[0].Labels["env"]})
	require.Equal(t, http.StatusOK, w.do("GET", "/api/v1/clusters/edge", nil).status)
	require.Equal(t, http.StatusNotFound, w.do("GET", "/api/v1/clusters/other", nil).status)
}

func TestResourcesAreFiltered(t *testing.T) {
	w := newWorld(t)
	a := w.resource(`{"cluster_id":"one","desired_spec":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"x","name":"a"}}}`)
	b := w.resource(`{"cluster_id":"two","kind":"Deployment","desired_spec":{"metadata":{"namespace":"x","name":"b"},"spec":{}}}`)
	c := w.resource(`{"cluster_selector":"env=prod","kind":"Namespace","name":"c","desired_spec":{}}`)
	d := w.resource(`{"cluster_selector":"*","kind":"Moon","api_version":"space.example/v1","name":"d","desired_spec":{}}`)
	require.Equal(t, "apps/v1", b.APIVersion)
	require.Equal(t, "*", d.ClusterSelector)
	w.synced(c.ResourceName, "one")
	for query, want := range map[string][]wire.Resource{
		"": {a, b, c, d}, "cluster=one": {a, c}, "cluster=two": {b}, "namespace=x": {a, b}, "kind=Moon": {d}, "name=c": {c},
		"state=Synced": {c}, "state=OutOfSync": {a, b, d}, "kind=ConfigMap&cluster=two": nil, "state=Terminating": nil,
	} {
		var got []wire.Resource
		w.do("GET", "/api/v1/resources?"+query, nil).into(t, &got)
		ids := func(list []wire.Resource) []int64 {
			out := []int64{}
			for _, r := range list {
				out = append(out, r.ID)
			}
			return out
		}
		require.ElementsMatch(t, ids(want), ids(got), query)
	}
	var one []wire.Resource
	page := w.do("GET", "/api/v1/resources?limit=3", nil)
	page.into(t, &one)
	require.Len(t, one, 3)
	w.do("GET", "/api/v1/resources?continue="+page.header.Get(continueHeader), nil).into(t, &one)
	require.Len(t, one, 1)
	require.Contains(t, w.do("GET", "/api/v1/resources?state=Fine", nil).says(t), "invalid state")
	preflight := w.do("OPTIONS", "/api/v1/resources/1", nil, "Origin", "https://page.example")
	require.Equal(t, "DELETE, GET, PATCH, PUT", preflight.header.Get("Access-Control-Allow-Methods"))
}

func TestBadResourcesAreRefused(t *testing.T) {
	w := newWorld(t)
	for body, says := range map[string]string{
		`{}`:                  "desired_spec must be an object",
		`{"desired_spec":[]}`: "desired_spec must be an object",
		`{"desired_spec":{"metadata":3},"kind":"ConfigMap"}`: "metadata must be " +
			"an object",
		`{"desired_spec":{"metadata":{"name":3}},"kind":"ConfigMap","name":"a"}`: "metadata.name " +
			"must be a string",
		`{"desired_spec":{},"kind":"Moon","name":"a","cluster_id":"c"}`: "api_version is " +
			"required",
		`{"desired_spec":{},"kind":"ConfigMap","name":"a"}`: "cluster_id or " +
			"cluster_selector",
		`{"desired_spec":{},"kind":"ConfigMap","cluster_id":"c"}`:                           "name",
		`{"desired_spec":{"kind":"Secret"},"kind":"ConfigMap","name":"a","cluster_id":"c"}`: `desired_spec.kind is "Secret", not "ConfigMap"`,
		`{"desired_spec":{"status":{}},"kind":"ConfigMap","name":"a","cluster_id":"c"}`: "the cluster " +
			"writes it",
		`{"desired_spec":{},"kind":"ConfigMap","name":"a","cluster_id":"c","mode":"Hope"}`:              "spec.mode",
		`{"desired_spec":{},"kind":"ConfigMap","name":"a","cluster_id":"c","revision":0}`:               "spec.revision",
		`{"desired_spec":{},"kind":"ConfigMap","name":"a","cluster_selector":"a in b"}`:                 "cluster_selector",
		`{"desired_spec":{},"kind":"ConfigMap","name":"a","cluster_id":"c","cluster_selector":"*"}`:     "clusterName is set",
		`{"desired_spec":{},"kind":"Resource","api_version":"kontrol.coracle.dev/v1alpha1","name":"a"}`: "cluster_id",
		`{"desired_spec":` + strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40) +
			`}`: "nested deeper",
		`{"desired_spec":{"data":{"a":"` + strings.Repeat("x", kontrol.MaxTemplate) +
			`"}},"kind":"ConfigMap","name":"a","namespace":"n","cluster_id":"c"}`: "spec.template",
		`{"cluster_id":"c","kind":"ConfigMap","name":"a","desired_spec":{}}`: "metadata.namespace: Required value: " +
			"ConfigMap is namespaced: set the namespace of the object",
		`{"cluster_id":"c","kind":"Node","name":"a","namespace":"n","desired_spec":{}}`: "Node is not namespaced: remove",
	} {
		a := w.do("POST", "/api/v1/resources", body)
		require.Equal(t, http.StatusBadRequest, a.status, "%.200s: %s", body, a.body)
		require.Contains(t, a.says(t), says, "%.200s", body)
	}
	made := w.resource(`{"cluster_id":"c","namespace":"n","kind":"ConfigMap","name":"a","desired_spec":{}}`)
	for body, says := range map[string]string{
		`{"desired_spec":null}`:                                                                                 "must be an object",
		`{"desired_spec":{"metadata":{"name":"other"}}}`:                                                        `is "other", not "a"`,
		`{"desired_spec":{"apiVersion":"b/v1"}}`:                                                                "cannot be changed",
		`{"cluster_selector":"*"}`:                                                                              "clusterName is set",
		`{"overrides":[{"clusterName":"c","patches":[]}]}`:                                                      `unknown field "patches"`,
		`{"ignore":{"paths":[]}}`:                                                                               `unknown field "paths"`,
		`{"generation":"x"}`:                                                                                    "generation must be",
		`{"approval":"Perhaps"}`:                                                                                "spec.approval",
		`{"windows":[{"kind":"Allow","schedule":"* * * * *","duration":"soon"}]}`:                               `windows[0].duration "soon" is not a duration`,
		`{"windows":[{"kind":"Allow","schedule":"* * * * *","duration":"1s"}]}`:                                 "must be from 1m to 744h",
		`{"windows":[{"kind":"Never","schedule":"* * * * *","duration":"1h"}]}`:                                 "spec.windows[0].kind",
		`{"windows":[{"kind":"Allow","schedule":"at noon","duration":"1h"}]}`:                                   "spec.windows[0].schedule",
		`{"windows":[{"kind":"Allow","schedule":"* * * * *","duration":"1h","time_zone":"Moon/Base"}]}`:         "spec.windows[0].timeZone",
		`{"windows":[` + strings.Repeat(`{"kind":"Deny","schedule":"* * * * *","duration":"1h"},`, 16) + `{}]}`: "windows",
	} {
		a := w.do("PATCH", fmt.Sprintf("/api/v1/resources/%d", made.ID), body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", body, a.body)
		require.Contains(t, a.says(t), says, body)
	}
}
