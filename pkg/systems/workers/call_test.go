package workers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// stored is a client of a cluster with the worker ns/w and one node.
type stored struct {
	client.Interface

	mu     sync.Mutex
	worker workers.Worker
	node   string
	rival  string // a server that records itself before the first update
	writes int
}

type storedCache struct {
	ctrlcache.Cache
	s *stored
}

type storedStatus struct {
	ctrl.SubResourceWriter
	s *stored
}

func (s *stored) Cache() ctrlcache.Cache         { return storedCache{s: s} }
func (s *stored) Status() ctrl.SubResourceWriter { return storedStatus{s: s} }

func (s *stored) Get(_ context.Context, key ctrl.ObjectKey, o ctrl.Object, _ ...ctrl.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := o.(type) {
	case *workers.Worker:
		if key.Name == "w" {
			s.worker.DeepCopyInto(o)
			return nil
		}
	case *corev1.Node:
		if key.Name == s.node {
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("things"), key.Name)
}

func (c storedCache) Get(ctx context.Context, key ctrl.ObjectKey, o ctrl.Object, options ...ctrl.GetOption) error {
	return c.s.Get(ctx, key, o, options...)
}

func (w storedStatus) Update(_ context.Context, o ctrl.Object, _ ...ctrl.SubResourceUpdateOption) error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.rival != "" {
		w.s.worker.Status.QueueServer, w.s.rival = w.s.rival, ""
		return apierrors.NewConflict(corev1.Resource("workers"), "w", errors.New("a rival"))
	}
	w.s.writes++
	o.(*workers.Worker).DeepCopyInto(&w.s.worker)
	return nil
}

// calling returns a messaging with the queue of ns/w, whose address serves calls. The program handles what comes.
func calling(t *testing.T, program func(d *workers.Delivery)) (*streaming, *messaging, *stored, string) {
	config := queueOf(workers.AtLeastOnce)
	on := newStreaming(t, config)
	at := &stored{worker: workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w", UID: "u"}}}
	on.queues.host = system.Server{Name: "s", Client: at, Alone: func() bool { return false }}
	m := &messaging{receiving: newReceiving()}
	m.queues.Store(on.queues)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		m.caller(types.NamespacedName{Namespace: "ns", Name: strings.Trim(req.URL.Path, "/")}).ServeHTTP(w, req)
	}))
	var running sync.WaitGroup
	stop := make(chan struct{})
	running.Go(func() {
		for {
			select {
			case d := <-on.came:
				program(d)
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		s.Close()
		close(stop)
		running.Wait()
	})
	return on, m, at, s.URL + "/"
}

// call posts a message with headers as NAME: VALUE.
func call(t *testing.T, url, text string, headers ...string) (*http.Response, string) {
	method := http.MethodPost
	if text == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(text))
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return res, strings.TrimSpace(string(body))
}

// TestCalls checks the answers to callers over an Ingress.
func TestCalls(t *testing.T) {
	held := make(chan *workers.Delivery, 100)
	_, m, at, url := calling(t, func(d *workers.Delivery) {
		switch text := string(d.Payload); {
		case text == "fail":
			d.Done(workers.Outcome{Failure: workers.HandlerFailed, Text: "secret", ErrorType: "Secret"})
		case text == "lose":
			d.Done(workers.Outcome{Failure: workers.ReceiverLost, Text: "10.42.0.7"})
		case text == "slow":
			held <- d
		default:
			d.Done(workers.Outcome{Payload: []byte(text + " " + d.ContentType + " " + d.Trace), ContentType: "text/plain"})
		}
	})
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	res, text := call(t, url+"w?wait=no&id=7&key=", "hello", "Content-Type: text/x", "Traceparent: "+trace, "Cookie: c",
		"Upgrade: coracle-messages", "Connection: Upgrade")
	require.Equal(t, http.StatusOK, res.StatusCode, text)
	require.Equal(t, "hello text/x "+trace, text)
	require.Equal(t, "text/plain", res.Header.Get("Content-Type"))
	require.NotEmpty(t, res.Header.Get(workers.HeaderID))
	require.Empty(t, res.Header.Get(workers.HeaderPod))
	require.Equal(t, "s", at.worker.Status.QueueServer)

	at.mu.Lock()
	at.worker.Spec.Delivery.Promise = workers.AtLeastOnce
	at.mu.Unlock()
	for _, c := range []struct {
		path, text string
		headers    []string
		code       int
		want       string
	}{
		{"w", "", nil, http.StatusMethodNotAllowed, "POST"},
		{"x", "hello", nil, http.StatusNotFound, "does not exist"},
		{"w", "fail", nil, http.StatusBadGateway, "the program failed to handle the message"},
		{"w", "lose", nil, http.StatusBadGateway, "may have handled it"},
		{"w", "slow", []string{"Coracle-Timeout: 5ms"}, http.StatusGatewayTimeout, "did not reply in time"},
		{"w", "hello", []string{"Coracle-Timeout: 6m"}, http.StatusBadRequest, "up to 5m0s"},
		{"w", "hello", []string{"Coracle-Timeout: -1s"}, http.StatusBadRequest, "up to 5m0s"},
		{"w", "hello", []string{"Coracle-Wait: perhaps"}, http.StatusBadRequest, "wait must be true or false"},
		{"w", "hello", []string{"Coracle-Deduplication-Id: 1"}, http.StatusBadRequest, "without a reply"},
		{"w", "hello", []string{"Coracle-Message-Key: " + strings.Repeat("k", 257)}, http.StatusBadRequest, "257 bytes"},
		{"w", "hello", []string{"Content-Type: " + strings.Repeat("k", 257)}, http.StatusBadRequest, "256 bytes"},
		{"w", strings.Repeat("x", workers.MaxPayload+1), nil, http.StatusRequestEntityTooLarge, "at most"},
		{"w", "hello", []string{"Coracle-Wait: false", "Ce-Id: 1", "Ce-Source: /s"}, http.StatusAccepted, ""},
	} {
		res, text := call(t, url+c.path, c.text, c.headers...)
		require.Equal(t, c.code, res.StatusCode, "%v: %s", c, text)
		require.Contains(t, text, c.want)
		require.NotContains(t, text, "secret")
		require.NotContains(t, text, "10.42")
		require.Empty(t, res.Header.Get(workers.HeaderErrorType))
	}
	res, _ = call(t, url+"w", "hello", "Coracle-Wait: false", "Ce-Id: 1", "Ce-Source: /s")
	require.Equal(t, "true", res.Header.Get(workers.HeaderDuplicate))
	(<-held).Done(workers.Outcome{})

	require.True(t, m.receiving.share.Enter("ns"), "all bodies have been counted down")
	m.receiving.share.Leave("ns")
	m.receiving = &receiving{share: connlimit.NewShare[string](100, 1)}
	res, _ = call(t, url+"w", strings.Repeat("x", 2*receiveUnit))
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	res, _ = call(t, url+"w", "hello")
	require.Equal(t, http.StatusOK, res.StatusCode)

	at.mu.Lock()
	at.worker.Status.QueueServer, at.node = "other", "other"
	at.mu.Unlock()
	res, _ = call(t, url+"w", "hello")
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	m.queues.Store(nil)
	res, _ = call(t, url+"w", "hello")
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
}

// TestCallsOfAFullQueue checks the answer of a full queue, and that the request of a caller who leaves ends at once.
func TestCallsOfAFullQueue(t *testing.T) {
	held := make(chan *workers.Delivery, 100)
	_, _, _, url := calling(t, func(d *workers.Delivery) { held <- d })
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	gone := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"w", strings.NewReader("leaves"))
		if err != nil {
			gone <- err
			return
		}
		_, err = http.DefaultClient.Do(req) //nolint:bodyclose // it has none
		gone <- err
	}()
	defer (<-held).Done(workers.Outcome{}) // after the server has closed, which waits for the request
	leave()
	require.ErrorIs(t, <-gone, context.Canceled)
	for range 3 { // the pod's other slots
		res, _ := call(t, url+"w", "busy", "Coracle-Wait: false")
		require.Equal(t, http.StatusAccepted, res.StatusCode)
		defer (<-held).Done(workers.Outcome{})
	}
	for range 5 {
		res, _ := call(t, url+"w", "waits", "Coracle-Wait: false")
		require.Equal(t, http.StatusAccepted, res.StatusCode)
	}
	res, text := call(t, url+"w", "one too many")
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Contains(t, text, "full")
}

// TestBodiesThatDoNotArrive checks that a slow body ends, and frees what it holds.
func TestBodiesThatDoNotArrive(t *testing.T) {
	of := newReceiving()
	a := &arriving{of: of, body: strings.NewReader("x"), namespace: "ns", until: time.Now().Add(time.Hour)}
	_, err := a.Read(make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, 1, a.units)
	a.until = time.Now().Add(-time.Second)
	_, err = a.Read(make([]byte, 1))
	require.Equal(t, int32(http.StatusRequestTimeout), apierrors.APIStatus(err.(*apierrors.StatusError)).Status().Code)
	a.end()
	a.end()
	require.Zero(t, a.units)
}

// TestHome checks which server becomes the home of a queue.
func TestHome(t *testing.T) {
	for name, c := range map[string]struct {
		is, node, rival string
		alone           bool
		want            string // the home; "" means a refusal
		writes          int
	}{
		"none yet":                     {want: "s", writes: 1},
		"this one":                     {is: "s", want: "s"},
		"another one":                  {is: "other", node: "other"},
		"another one that was removed": {is: "other", want: "s", writes: 1},
		"another name, one server":     {is: "other", node: "other", alone: true, want: "s", writes: 1},
		"a rival is faster":            {rival: "other", node: "other"},
		"a removed rival was faster":   {rival: "other", want: "s", writes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			at := &stored{node: c.node, rival: c.rival}
			at.worker.Namespace, at.worker.Name, at.worker.Status.QueueServer = "ns", "w", c.is
			q := &queues{host: system.Server{Name: "s", Client: at, Alone: func() bool { return c.alone }}}
			_, err := q.address(t.Context(), types.NamespacedName{Namespace: "ns", Name: "w"})
			require.Equal(t, c.writes, at.writes)
			if c.want == "" {
				require.ErrorContains(t, err, "server other keeps the queue of worker w")
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, at.worker.Status.QueueServer)
		})
	}
}
