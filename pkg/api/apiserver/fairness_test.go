package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/fairness"
)

// hog takes every seat that the user can get, until the end of the test.
func (w *world) hog(name string) {
	u := &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
	class := w.srv.fair.Classify(u, &request.RequestInfo{IsResourceRequest: true, Verb: "list", Resource: "pods"})
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	for {
		ticket, err := w.srv.fair.Begin(class, false)
		require.NoError(w.t, err)
		if ticket.Acquire(ctx) != nil {
			ticket.End()
			return
		}
	}
}

// allow grants a user everything without exempting it from the limits.
func (w *world) allow(name string) {
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	r := w.do(w.http, "POST", rbac+"clusterroles",
		`{"metadata":{"name":"all"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]},{"nonResourceURLs":["*"],"verbs":["*"]}]}`)
	require.Equal(w.t, 201, r.code, "%s", r.body)
	r = w.do(w.http, "POST", rbac+"clusterrolebindings",
		`{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"all"},`+
			`"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"`+name+`"}]}`)
	require.Equal(w.t, 201, r.code, "%s", r.body)
}

func (w *world) executing() (n int) {
	for _, s := range w.srv.fair.Stats() {
		n += s.Executing
	}
	return n
}

func TestBoundOnRequests(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Fairness = fairness.Config{Seats: 20, Wait: 20 * time.Millisecond} })
	w.allow("ann")
	w.hog("ann")
	r := w.do(w.as("ann"), "GET", "/version", "")
	require.Equal(t, 429, r.code)
	require.Equal(t, "1", r.header.Get("Retry-After"))
	require.Equal(t, metav1.StatusReasonTooManyRequests, r.status(t).Reason)
	require.Equal(t, 429, w.do(w.as("ann"), "GET", "/api/v1/pods?watch=true", "").code, "a watch begins with a seat")
	require.Equal(t, 200, w.do(w.http, "GET", "/version", "").code, "administrators are exempt")
	node := w.as("system:node:n1", user.NodesGroup)
	require.Equal(t, 404, w.do(node, "GET", "/api/v1/nodes/n1", "").code, "nodes have seats of their own")
	require.Equal(t, 404, w.do(node, "GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", "").code)
	metrics := string(w.do(w.http, "GET", "/metrics", "").body)
	require.True(t,
		strings.Contains(metrics,
			`apiserver_flowcontrol_rejected_requests_total{flow_schema="global-default",priority_level="global-default",reason="time-out"} 2`))
}

// big creates config maps of 1 MiB each in a namespace.
func (w *world) big(mebibytes int) {
	w.namespace("big")
	for i := range mebibytes {
		r := w.do(w.http, "POST", "/api/v1/namespaces/big/configmaps",
			fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m%d"},"data":{"a":"%s"}}`, i,
				strings.Repeat("x", 1<<20-1024)))
		require.Equal(w.t, 201, r.code)
	}
}

// A client that does not read its response holds no seat, and is disconnected.
func TestUnreadAnswersHoldNoSeat(t *testing.T) {
	// WriteStall leaves the test's own requests time on a busy machine.
	w := newWorld(t, func(c *Config) { c.WriteStall = 2 * time.Second })
	w.big(12)
	w.allow("ann")
	const path = "/api/v1/namespaces/big/configmaps"
	t.Run("HTTP/1", func(t *testing.T) {
		c, err := tls.Dial("tcp", strings.TrimPrefix(w.url, "https://"), &tls.Config{
			RootCAs:      w.ca.pool,
			ServerName:   "localhost",
			Certificates: []tls.Certificate{w.ca.issue(t, "ann")},
		})
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		head := make([]byte, 12)
		_, err = io.ReadFull(c, head)
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 200", string(head))
		require.Zero(t, w.executing())
		gone := func() bool {
			return strings.Contains(string(w.do(w.http, "GET", "/metrics", "").body), "\napiserver_connections 1\n")
		}
		require.Eventually(t, gone, time.Minute, 20*time.Millisecond, "the connection is closed")
	})
	t.Run("HTTP/2 watch", func(t *testing.T) {
		res, err := w.as("ann").Get(w.url + path +
			"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, 2, res.ProtoMajor)
		require.Zero(t, w.executing())
		over := func() bool {
			return strings.Contains(string(w.do(w.http, "GET", "/metrics", "").body),
				`apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"} 0`)
		}
		require.Eventually(t, over, time.Minute, 20*time.Millisecond, "the watch is ended")
	})
}

// A client that does not send its request body holds no seat.
func TestUnsentBodiesHoldNoSeat(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Fairness = fairness.Config{Seats: 10, Wait: time.Millisecond}
		c.RequestTimeout = 2 * time.Second
	})
	w.allow("ann")
	ann := w.as("ann")
	done := make(chan int)
	const many = 20
	for range many {
		body, never := io.Pipe()
		defer never.Close()
		go func() {
			req, _ := http.NewRequest("POST", w.url+"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
			res, err := ann.Do(req)
			if err != nil {
				done <- 0
				return
			}
			_ = res.Body.Close()
			done <- res.StatusCode
		}()
	}
	for range 10 {
		require.Equal(t, 200, w.do(w.as("ann"), "GET", "/version", "").code)
	}
	for range many {
		require.Equal(t, 504, <-done)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Fairness = fairness.Config{FlowBodyBytes: 128 << 10} })
	w.namespace("d")
	for size, code := range map[int]int{10 << 10: 403, 1 << 20: 403} {
		r := w.do(w.as("ann"), "POST", "/api/v1/namespaces/d/configmaps", `{"x":"`+strings.Repeat("x", size)+`"}`)
		require.Equal(t, code, r.code, "who may not write is refused first")
	}
	w.allow("ann")
	const review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	require.Equal(t, 429, w.do(w.as("ann"), "POST", review, `{"x":"`+strings.Repeat("x", 1<<20)+`"}`).code)
	require.NotEqual(t, 429, w.do(w.as("ann"), "POST", review, `{"x":"`+strings.Repeat("x", 100<<10)+`"}`).code)
	require.Equal(t, 413,
		w.do(w.http, "POST", "/api/v1/namespaces/d/configmaps", `{"x":"`+strings.Repeat("x", maxBody)+`"}`).code)
}

// Values chosen by clients do not become labels.
func TestMetricsLabelsAreOurs(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Fairness = fairness.Config{Seats: 20, Wait: time.Millisecond} })
	w.allow("ann")
	w.hog("ann")
	ann := w.as("ann")
	for _, path := range []string{
		"/apis/made.up/v1/madeup", "/api/v1/madeup?timeout=x", "/api/v1/namespaces/d/pods/p/madeup?timeout=x", "/madeup",
	} {
		for _, c := range []*http.Client{ann, w.http} {
			w.do(c, "GET", path, "")
			w.do(c, "MADEUP", path, "")
		}
	}
	metrics := strings.ToLower(string(w.do(w.http, "GET", "/metrics", "").body))
	require.False(t, strings.Contains(metrics, "madeup"))
	require.False(t, strings.Contains(metrics, "made.up"))
	require.True(t, strings.Contains(metrics, `verb="other"`))
}

func TestConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConnectionsPerAddress = 3 })
	dial := func() net.Conn {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "https://"))
		require.NoError(t, err)
		return c
	}
	var open []net.Conn
	for range 3 {
		open = append(open, dial())
	}
	beyond := dial()
	_, err := beyond.Read(make([]byte, 1))
	require.Error(t, err, "closed at once")
	for _, c := range open {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		res, err := w.http.Get(w.url + "/version")
		return err == nil && res.Body.Close() == nil && res.StatusCode == 200
	}, time.Minute, time.Millisecond, "those that end make room")
}
