package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// read sets the status that the reconciler sets after it has read a bundle's content.
func (w *world) read(name, content string) {
	w.t.Helper()
	var b kontrol.Bundle
	require.NoError(w.t, w.admin.Get(w.t.Context(), ctrl.ObjectKey{Name: name}, &b))
	next := b.DeepCopy()
	s := &next.Status
	s.ObservedGeneration, s.Phase, s.Message, s.Content, s.Objects = b.Generation, kontrol.BundleWaiting, "it waits",
		content, 1
	s.Targets = []kontrol.BundleTarget{{Name: "edge", Phase: kontrol.TargetWaiting, Wave: new(int32(0))}}
	require.NoError(w.t, w.admin.Status().Update(w.t.Context(), next))
}

// TestABundle follows a bundle from creation to deletion. Its ID stays the same, and the approval is for the
// content that was read.
func TestABundle(t *testing.T) {
	w := newWorld(t)
	a := w.do("POST", "/api/v1/bundles",
		`{"name":"shop","cluster_selector":"env=prod","inline":"kind: x","approval":"Manual","max_unavailable":"20%","health_timeout_seconds":60}`)
	require.Equal(t, http.StatusCreated, a.status, a.body)
	var made, b wire.Bundle
	a.into(t, &made)
	require.Positive(t, made.ID)
	require.Equal(t,
		[]any{"shop", "env=prod", "kind: x", "Manual", "20%", int64(60), "Correct", "Delete", "Stop", "Progressing"},
		[]any{
			made.Name, made.ClusterSelector, made.Inline, made.Approval, made.MaxUnavailable, made.HealthTimeout, made.Mode,
			made.DeletionPolicy, made.OnFailure, made.State,
		})
	at := fmt.Sprintf("/api/v1/bundles/%d", made.ID)

	put := func(body string) {
		t.Helper()
		a := w.do("PUT", at, body)
		require.Equal(t, http.StatusOK, a.status, a.body)
		b = wire.Bundle{}
		a.into(t, &b)
		require.Equal(t, made.ID, b.ID)
	}
	put(`{"config_map":"shop/objects","mode":"Report","windows":[{"kind":"Deny","schedule":"@daily","duration":"8h"}]}`)
	require.Equal(t, []wire.SyncWindow{{Kind: "Deny", Schedule: "@daily", Duration: "8h0m0s"}}, b.Windows)
	require.Equal(t, []any{"", "shop/objects", "Report", int64(2)}, []any{b.Inline, b.ConfigMap, b.Mode, b.Generation})
	put(`{"artifact":"registry.example:5000/shop:v1"}`)
	put(`{"artifact":"registry.example:5000/shop@sha256:` + strings.Repeat("a", 64) + `"}`)
	require.Contains(t, b.Artifact, "@sha256:", "what never changes is not looked up again")
	whole, err := json.Marshal(b)
	require.NoError(t, err)
	generation := b.Generation
	put(string(whole))
	require.Equal(t, generation, b.Generation, "nothing has changed")
	require.Contains(t, w.do("PUT", at, `{"paused":true,"generation":1}`).says(t), "by now, not 1")

	require.Contains(t, w.do("POST", at+"/approve", `{"content":"sha256:1"}`).says(t), "was not read yet")
	w.read("shop", "sha256:2")
	require.Contains(t, w.do("POST", at+"/approve", `{"content":"sha256:1"}`).says(t), "the content is sha256:2 by now")
	w.do("POST", at+"/approve", `{"content":"sha256:2"}`).into(t, &b)
	require.True(t, b.ContentApproved)
	require.Equal(t, []any{"Waiting", "it waits", "edge"}, []any{b.State, b.Message, b.Clusters[0].ClusterID})
	for query, want := range map[string]int{
		"":              1,
		"cluster=edge":  1,
		"cluster=other": 0,
		"state=Waiting": 1,
		"state=Synced":  0,
	} {
		var got []wire.Bundle
		w.do("GET", "/api/v1/bundles?"+query, nil).into(t, &got)
		require.Len(t, got, want, query)
	}
	put(`{"approval":"None"}`)
	require.Contains(t, w.do("POST", at+"/approve", `{"content":"sha256:2"}`).says(t), "needs no approval")
	require.Equal(t, http.StatusOK, w.do("DELETE", at, nil).status)
	require.Equal(t, http.StatusNotFound, w.do("GET", at, nil).status)
}

func TestBadBundlesAreRefused(t *testing.T) {
	w := newWorld(t)
	for body, says := range map[string]string{
		`{}`:                            "name is required",
		`{"name":"a"}`:                  "cluster_id or cluster_selector",
		`{"name":"a","cluster_id":"c"}`: "exactly one of inline, configMap and artifact",
		`{"name":"a","cluster_id":"c","inline":"x","config_map":"a/b"}`:                              "exactly one of inline",
		`{"name":"a","cluster_id":"c","config_map":"a"}`:                                             "is not NAMESPACE/NAME",
		`{"name":"a","cluster_id":"c","artifact":"shop"}`:                                            "must be HOST/PATH:TAG",
		`{"name":"A.B","cluster_id":"c","inline":"x"}`:                                               "metadata.name",
		`{"name":"a","cluster_id":"c","inline":"x","mode":"Hope"}`:                                   "spec.mode",
		`{"name":"a","cluster_id":"c","inline":"x","max_unavailable":"0"}`:                           "maxUnavailable",
		`{"name":"a","cluster_id":"c","inline":"x","max_unavailable":"many"}`:                        "maxUnavailable",
		`{"name":"a","cluster_id":"c","inline":"x","health_timeout_seconds":-5}`:                     "healthTimeout",
		`{"name":"a","cluster_id":"c","inline":"x","health_timeout_seconds":9223372036854775807}`:    "healthTimeout",
		`{"name":"a","cluster_id":"c","inline":"x","on_failure":"Pray"}`:                             "onFailure",
		`{"name":"a","cluster_id":"c","inline":"x","windows":[{"kind":"Deny","schedule":"@daily"}]}`: "windows[0].duration",
		`{"name":"a","cluster_id":"c","cluster_selector":"*","inline":"x"}`:                          "clusterName is set",
		`{"name":"a","cluster_selector":"a in b","inline":"x"}`:                                      "cluster_selector",
		`{"name":"a","cluster_id":"c","inline":"` + strings.Repeat("x", kontrol.MaxInline+1) + `"}`:  "spec.source.inline",
	} {
		a := w.do("POST", "/api/v1/bundles", body)
		require.Equal(t, http.StatusBadRequest, a.status, "%.200s: %s", body, a.body)
		require.Contains(t, a.says(t), says, "%.200s", body)
	}
	require.Equal(t, http.StatusNotFound, w.do("GET", "/api/v1/bundles/1e3", nil).status)
	require.Contains(t, w.do("GET", "/api/v1/bundles?state=Fine", nil).says(t), "invalid state")
}
