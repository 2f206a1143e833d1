package apiserver

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// metric returns the value of the series whose line begins with the given text, or "".
func (w *world) metric(series string) string {
	for line := range strings.Lines(string(w.do(w.http, "GET", "/metrics", "").body)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func TestMetricsHaveTheNamesAndLabelsOfUpstream(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	const maps = "/api/v1/namespaces/d/configmaps"
	require.Equal(t, 201, w.do(w.http, "POST", maps+"?dryRun=All", `{"metadata":{"name":"a"}}`).code)
	require.Equal(t, 201, w.do(w.http, "POST", maps, `{"metadata":{"name":"a"}}`).code)
	require.Equal(t, 200, w.do(w.http, "GET", maps, "").code)
	require.Equal(t, 404, w.do(w.http, "GET", maps+"/b", "").code)
	require.Equal(t, 200, w.do(w.http, "DELETE", maps, "").code)
	labels := func(verb, dry, scope string) string {
		return `component="apiserver",CODEdry_run="` + dry + `",group="",resource="configmaps",scope="` + scope +
			`",subresource="",verb="` + verb + `",version="v1"}`
	}
	for _, c := range []struct{ verb, dry, scope, code string }{
		{"POST", "All", "resource", "201"}, {"POST", "", "resource", "201"}, {"LIST", "", "namespace", "200"},
		{"GET", "", "resource", "404"}, {"DELETECOLLECTION", "", "namespace", "200"},
	} {
		l := labels(c.verb, c.dry, c.scope)
		require.Equal(t, "1", w.metric(`apiserver_request_total{code="`+c.code+`",`+strings.Replace(l, "CODE", "", 1)), c)
		require.Equal(t, "1", w.metric(`apiserver_request_duration_seconds_count{`+strings.Replace(l, "CODE", "", 1)), c)
	}
	require.Equal(t, "1", w.metric(`apiserver_current_inflight_requests{request_kind="readOnly"}`), "the one that asks")
	require.Equal(t, "0", w.metric(`apiserver_current_inflight_requests{request_kind="mutating"}`))

	res, err := w.http.Get(w.url + maps + "?watch=true")
	require.NoError(t, err)
	defer res.Body.Close()
	running := `apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"}`
	require.Equal(t, "1", w.metric(running))
	require.Equal(t, 201, w.do(w.http, "POST", maps, `{"metadata":{"name":"c"}}`).code)
	_, err = io.ReadFull(res.Body, make([]byte, 10))
	require.NoError(t, err)
	require.Equal(t, "1", w.metric(`apiserver_watch_events_total{group="",resource="configmaps",version="v1"}`))
	require.NoError(t, res.Body.Close())
	require.Eventually(t, func() bool { return w.metric(running) == "0" }, time.Minute, 5*time.Millisecond)

	problems, err := testutil.GatherAndLint(w.srv.cfg.Metrics)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestCodesOfProxiedAnswersMakeNoSeries(t *testing.T) {
	for code, want := range map[int]int{200: 200, 404: 404, 999: 520, 299: 520, 599: 520} {
		require.Equal(t, want, codeLabel(code))
	}
	for query, want := range map[string]string{
		"":               "",
		"dryRun=All":     "All",
		"a=b&dryRun=All": "All",
		"dryRun=x":       "invalid",
		"x=dryRun":       "",
		"dryRun=All%00":  "invalid",
	} {
		require.Equal(t, want, dryRunLabel(query), query)
	}
	req := &http.Request{Method: "MADEUP"}
	require.Equal(t, "other", verbLabel(req, infoOf(t, "MADEUP", "/api/v1/pods")))
}

func infoOf(t *testing.T, method, path string) *request.RequestInfo {
	req, err := http.NewRequest(method, path, nil)
	require.NoError(t, err)
	info, err := (&request.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	}).NewRequestInfo(req)
	require.NoError(t, err)
	return info
}
