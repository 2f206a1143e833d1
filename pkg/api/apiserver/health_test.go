package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHealth(t *testing.T) {
	var broken error
	w := newWorld(t, func(c *Config) {
		c.Checks = []Check{
			{Name: "etcd", Check: func(context.Context) error { return broken }, Live: true},
			{Name: "informer-sync", Check: func(context.Context) error { return nil }},
			{Name: "poststarthook/rbac/bootstrap-roles", Check: func(context.Context) error { return nil }, Start: true},
			{Name: "wild", Check: func(context.Context) error { panic("boom") }},
		}
	})
	get := func(path string) (int, string) {
		r := w.do(w.http, "GET", path, "")
		return r.code, string(r.body)
	}
	const live = "[+]ping ok\n[+]log ok\n[+]etcd ok\n"
	const ready = "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]informer-sync ok\n[+]poststarthook/rbac/bootstrap-roles ok\n"
	for _, c := range []struct {
		path string
		code int
		body string
	}{
		{"/healthz", 200, "ok"},
		{"/livez", 200, "ok"},
		{"/livez?verbose", 200, live + "livez check passed\n"},
		{"/healthz?verbose=1", 200, live + "[+]poststarthook/rbac/bootstrap-roles ok\nhealthz check passed\n"},
		{"/readyz", 500, ready + "[-]wild failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"},
		{"/readyz?exclude=wild", 200, "ok"},
		{"/readyz?verbose&exclude=wild", 200, ready + "[+]wild excluded: ok\n[+]shutdown ok\nreadyz check passed\n"},
		{"/livez?verbose&exclude=nothing&exclude=etcd", 200, strings.Replace(live, "etcd ok", "etcd excluded: ok", 1) +
			"warn: some health checks cannot be excluded: no matches for \"nothing\"\nlivez check passed\n"},
		{"/readyz/etcd", 200, "ok"},
		{"/livez/poststarthook/rbac/bootstrap-roles", 404, "404 page not found\n"},
		{"/healthz/poststarthook/rbac/bootstrap-roles", 200, "ok"},
		{"/readyz/wild", 500, "internal server error: the check panicked\n"},
		{"/livez/informer-sync", 404, "404 page not found\n"},
		{"/readyz/nothing", 404, "404 page not found\n"},
	} {
		code, body := get(c.path)
		require.Equal(t, c.code, code, c.path)
		require.Equal(t, c.body, body, c.path)
	}
	broken = errors.New("no space left")
	code, body := get("/livez")
	require.Equal(t, 500, code)
	require.Equal(t, strings.Replace(live, "[+]etcd ok", "[-]etcd failed: reason withheld", 1)+"livez check failed\n",
		body)
	code, body = get("/livez/etcd")
	require.Equal(t, 500, code)
	require.Equal(t, "internal server error: no space left\n", body)

	stranger := w.anonymous()
	require.Equal(t, 500, w.do(stranger, "GET", "/livez", "").code)
	require.Equal(t, 401, w.do(stranger, "GET", "/livez/etcd", "").code, "reasons are not for everybody")
	_, slis := get("/metrics/slis")
	require.Contains(t, slis, `kubernetes_healthcheck{name="etcd",type="livez"} 0`)
	require.Contains(t, slis, `kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 5`)
	_, paths := get("/")
	require.Contains(t, paths, `"/readyz/informer-sync"`)
	require.NotContains(t, paths, `"/livez/informer-sync"`)
}

// A hanging check runs once for all concurrent callers, and fails after its timeout.
func TestAHangingCheckFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		logging := newLogging(slog.DiscardHandler)
		h := newHealth(Config{
			Logger: slog.New(logging), Checks: []Check{{Name: "etcd", Check: func(ctx context.Context) error {
				asked++
				<-ctx.Done()
				return ctx.Err()
			}}},
		}, t.Context(), new(atomic.Bool), logging)
		var all sync.WaitGroup
		began := time.Now()
		for range 100 {
			all.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
				require.Equal(t, 500, w.Code)
			})
		}
		all.Wait()
		require.Equal(t, checkTime, time.Since(began))
		require.Equal(t, 1, asked)
	})
}

type blockedHandler struct {
	slog.Handler
	free chan struct{}
}

func (h blockedHandler) Handle(context.Context, slog.Record) error { <-h.free; return nil }

func TestABlockedLogIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		l := newLogging(blockedHandler{slog.NewTextHandler(nil, nil), free})
		require.NoError(t, l.check(t.Context()))
		go slog.New(l).Warn("something")
		time.Sleep(logBlocked - time.Second)
		require.NoError(t, l.check(t.Context()))
		time.Sleep(2 * time.Second)
		require.Error(t, l.check(t.Context()))
		close(free)
		synctest.Wait()
		require.NoError(t, l.check(t.Context()))
	})
}

func TestComponentStatus(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Components = []Check{
			{Name: "controller-manager", Check: func(context.Context) error { return nil }},
			{Name: "etcd-0", Check: func(context.Context) error { return errors.New("gone") }},
		}
	})
	cs, ctx := w.clientset(w.http).CoreV1().ComponentStatuses(), t.Context()
	list, err := cs.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	require.Equal(t,
		[]corev1.ComponentCondition{{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}},
		list.Items[0].Conditions)
	one, err := cs.Get(ctx, "etcd-0", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t,
		[]corev1.ComponentCondition{{Type: corev1.ComponentHealthy, Status: corev1.ConditionFalse, Error: "gone"}},
		one.Conditions)
	_, err = cs.Get(ctx, "none", metav1.GetOptions{})
	require.EqualError(t, err, `componentstatus "none" not found`)
	list, err = cs.List(ctx, metav1.ListOptions{LabelSelector: "a=b"})
	require.NoError(t, err)
	require.Empty(t, list.Items)
	list, err = cs.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=etcd-0"})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	const path = "/api/v1/componentstatuses"
	for _, method := range []string{"POST", "DELETE"} {
		require.Equal(t, 405, w.do(w.http, method, path, "{}").code)
	}
	require.Equal(t, 405, w.do(w.http, "GET", path+"?watch=true", "").code)
	var table metav1.Table
	require.NoError(t,
		json.Unmarshal(w.do(w.http, "GET", path, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body, &table))
	require.Equal(t, "Status", table.ColumnDefinitions[1].Name)
	require.Equal(t, []any{"controller-manager", "Healthy", "ok", ""}, table.Rows[0].Cells)
	require.Contains(t, string(w.do(w.http, "GET", "/api/v1", "").body), `"componentstatuses"`)
	require.Contains(t, string(w.do(w.http, "GET", "/openapi/v3/api/v1", "").body), `"/api/v1/componentstatuses/{name}"`)
}

// 5xx responses are logged with user and path, at a limited rate.
func TestFailuresAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := newFailures(slog.New(slog.NewTextHandler(&out, nil)))
		req := httptest.NewRequest(http.MethodPut, "/api/v1/"+strings.Repeat("x", 2*longestPath), nil)
		for i := range 100 {
			f.report(req, 503, fmt.Errorf("failure %d", i))
		}
		require.Equal(t, mostFailures, strings.Count(out.String(), "\n"))
		require.Contains(t, out.String(), `level=WARN msg="request failed" method=PUT path=/api/v1/xxx`)
		require.Contains(t, out.String(), `code=503 error="failure 0"`)
		require.Less(t, out.Len(), mostFailures*(longestPath+200))
		out.Reset()
		time.Sleep(failuresEvery)
		f.report(req, 500, errors.New("later"))
		require.Contains(t, out.String(), "count=80")
		require.Contains(t, out.String(), "level=ERROR")
	})
}
