package workers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	streams "github.com/coracle-dev/coracle/pkg/systems/workers/sender"
)

// streaming is a connection to the queue of a pod, which is in the annotation of a worker without an object. The test
// acts as the pod's program.
type streaming struct {
	kind.Connection
	queues *queues
	came   chan *workers.Delivery
	config *workers.Queue
	// patches are written to the worker's status.
	patches chan string

	mu   sync.Mutex
	held int
	most int
}

type cached struct {
	client.Interface
	cache   ctrlcache.Cache
	patches chan string
}

// statuses passes on the patches of statuses.
type statuses struct {
	ctrl.SubResourceWriter
	patches chan string
}

func (c cached) Status() ctrl.SubResourceWriter { return statuses{patches: c.patches} }

func (s statuses) Patch(_ context.Context, o ctrl.Object, p ctrl.Patch, _ ...ctrl.SubResourcePatchOption) error {
	text, err := p.Data(o)
	if err == nil {
		err = json.Unmarshal(text, o) // as a merge patch
	}
	s.patches <- string(text)
	return err
}

func (c cached) Cache() ctrlcache.Cache { return c.cache }

// informers tell when a handler was added: a fake informer does not repeat objects.
type informers struct {
	*informertest.FakeInformers
	added chan struct{}
}

type informer struct {
	ctrlcache.Informer
	added chan struct{}
}

func (i informers) GetInformer(ctx context.Context, o ctrl.Object,
	options ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	of, err := i.FakeInformers.GetInformer(ctx, o, options...)
	return informer{of, i.added}, err
}

func (i informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration,
	error) {
	defer func() { i.added <- struct{}{} }()
	return i.Informer.AddEventHandler(h)
}

func newStreaming(t *testing.T, config workers.Queue) *streaming {
	return newStreamingIn(t, config, nil, nil)
}

// newStreamingIn keeps the queue in NATS servers, unless nats is nil. w, if set, is the worker.
func newStreamingIn(t *testing.T, config workers.Queue, nats *queue.NATS, w *workers.Worker) *streaming {
	c := &streaming{most: 1 << 20, came: make(chan *workers.Delivery, 100), config: &config}
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, workers.AddToScheme(scheme))
	all := informers{&informertest.FakeInformers{Scheme: scheme}, make(chan struct{}, 2)}
	pods, err := all.FakeInformerFor(t.Context(), &corev1.Pod{})
	require.NoError(t, err)
	var d *dispatch.Dispatcher
	messages, err := queue.Open(queue.Config{
		File: filepath.Join(t.TempDir(), "queues.db"), Logger: slog.New(slog.DiscardHandler), NATS: nats,
		Changed: func(k queue.Key) { d.Changed(k) },
	})
	require.NoError(t, err)
	c.patches = make(chan string, 100)
	d = dispatch.New(dispatch.Config{
		Queues: messages, Client: cached{cache: all, patches: c.patches}, Server: "s", Logger: slog.New(slog.DiscardHandler),
		Local: func(string) dispatch.Node { return c },
		Connect: func(context.Context, string) (*url.URL, http.RoundTripper, error) {
			return nil, nil, errors.New("no other node")
		},
	})
	require.NoError(t, d.Start(t.Context()))
	<-all.added
	if w != nil {
		of, err := all.FakeInformerFor(t.Context(), &workers.Worker{})
		require.NoError(t, err)
		of.Add(w)
	}
	d.Purge(queue.Key{Namespace: "ns", Worker: "w"}, false) // starts following pods
	<-all.added
	pods.Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "p", UID: "p", Annotations: map[string]string{workers.AnnotationQueue: config.Annotation()},
		},
		Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	})
	c.queues = &queues{messages: messages, dispatch: d}
	t.Cleanup(func() {
		d.Stop()
		require.NoError(t, messages.Close())
	})
	return c
}

func (c *streaming) Target() (*kind.Resource, string, string) {
	return &kind.Resource{Plural: "services", Singular: "service"}, "ns", "w"
}

func (c *streaming) Recheck(context.Context) error { return nil }

func (c *streaming) Hold(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held+n > c.most {
		return apierrors.NewTooManyRequests("too many bytes", 1)
	}
	c.held += n
	return nil
}

func (c *streaming) Drop(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held -= n
}

func (c *streaming) Fail(w http.ResponseWriter, _ *http.Request, err error) {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		w.Header().Set("X-Reason", string(status.ErrStatus.Reason))
		w.WriteHeader(int(status.ErrStatus.Code))
		_, _ = io.WriteString(w, status.ErrStatus.Message)
	}
}

func (c *streaming) Accept(list []*workers.Delivery) {
	for _, d := range list {
		c.came <- d
	}
}

func (c *streaming) sender() sender {
	return sender{queues: c.queues, on: c, find: func(context.Context) (address, error) {
		return address{key: queue.Key{Namespace: "ns", Worker: "w"}, config: c.config}, nil
	}}
}

// serve serves messages from a user and returns their address.
func (c *streaming) serve(ctx context.Context, t *testing.T, who user.Info) (*httptest.Server, *sync.WaitGroup) {
	var serving sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		serving.Add(1)
		defer serving.Done()
		on := ctx
		if on == nil {
			on = req.Context()
		}
		c.sender().ServeHTTP(w, req.WithContext(request.WithUser(on, who)))
	}))
	t.Cleanup(s.Close)
	return s, &serving
}

var ann = &user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated}}

func queueOf(promise workers.Promise) workers.Queue {
	return workers.Queue{
		Worker: "w", Promise: promise, Limit: 5, Concurrency: 4, TimeoutSeconds: 60, QueueSeconds: 60, MaxAttempts: 1,
	}
}

func TestStream(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtLeastOnce))
	srv, serving := on.serve(nil, t, ann)
	s := streams.New(srv.Client(), srv.URL)
	require.NoError(t, s.Send(t.Context(), streams.Message{Payload: []byte("note")}))
	d := <-on.came
	require.Equal(t, "note", string(d.Payload))
	require.Equal(t, "application/octet-stream", d.ContentType)
	d.Done(workers.Outcome{})

	call := func(ctx context.Context, text string) chan error {
		got := make(chan error, 1)
		go func() {
			r, err := s.Call(ctx, streams.Message{Payload: []byte(text), ContentType: "text/plain"})
			if err == nil && string(r.Payload) != "re: "+text {
				err = fmt.Errorf("%q", r.Payload)
			}
			got <- err
		}()
		return got
	}
	reply := func(d *workers.Delivery) { d.Done(workers.Outcome{Payload: append([]byte("re: "), d.Payload...)}) }
	first, second := call(t.Context(), "1"), call(t.Context(), "2")
	a, b := <-on.came, <-on.came
	reply(b)
	reply(a)
	require.NoError(t, <-first)
	require.NoError(t, <-second)

	failed := call(t.Context(), "3")
	(<-on.came).Done(workers.Outcome{Failure: workers.HandlerFailed, Text: "no", ErrorType: "T"})
	require.Equal(t, &streams.Error{Code: 500, Reason: "HandlerFailed", Message: "pod p: no"}, <-failed)

	ctx, cancel := context.WithCancel(t.Context())
	gone := call(ctx, "4")
	d = <-on.came
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	d.Done(workers.Outcome{})

	var large *streams.Error
	require.ErrorAs(t, s.Send(t.Context(), streams.Message{ContentType: strings.Repeat("x", 300)}), &large)
	require.Equal(t, 400, large.Code)
	on.mu.Lock()
	on.most = 10
	on.mu.Unlock()
	require.ErrorAs(t, s.Send(t.Context(), streams.Message{Payload: make([]byte, 11)}), &large)
	require.Equal(t, 429, large.Code)
	on.mu.Lock()
	on.most = 1 << 20
	on.mu.Unlock()

	last := call(t.Context(), "5")
	d = <-on.came
	closed := make(chan struct{})
	go func() { defer close(closed); s.Close() }()
	reply(d)
	require.NoError(t, <-last)
	<-closed
	serving.Wait()
	require.Zero(t, on.held)
}

// TestStreamEnds checks that a disconnected sender's messages end.
func TestStreamEnds(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtMostOnce))
	ctx, cancel := context.WithCancel(t.Context())
	srv, serving := on.serve(ctx, t, ann)
	s := streams.New(srv.Client(), srv.URL)
	got := make(chan error, 1)
	go func() {
		_, err := s.Call(t.Context(), streams.Message{Payload: []byte("x")})
		got <- err
	}()
	d := <-on.came
	cancel() // as if the server stopped
	var lost *streams.Error
	require.ErrorAs(t, <-got, &lost)
	require.Contains(t, []int{502, 504}, lost.Code)
	serving.Wait()
	require.Zero(t, on.held)
	d.Done(workers.Outcome{})
	s.Close()
}

func TestSend(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtLeastOnce))
	srv, _ := on.serve(nil, t, ann)
	post := func(query, text string) (int, http.Header) {
		res, err := srv.Client().Post(srv.URL+"?"+query, "text/plain", strings.NewReader(text))
		require.NoError(t, err)
		defer res.Body.Close()
		return res.StatusCode, res.Header
	}
	code, head := post("", "note")
	require.Equal(t, http.StatusAccepted, code)
	d := <-on.came
	require.Equal(t, head.Get(workers.HeaderID), d.ID)
	d.Done(workers.Outcome{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		d := <-on.came
		d.Done(workers.Outcome{Payload: []byte("reply"), ContentType: "text/plain"})
	}()
	code, head = post("wait=true", "question")
	<-done
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "p", head.Get(workers.HeaderPod))
	require.Equal(t, "1", head.Get(workers.HeaderAttempt))

	code, _ = post("batch", "a\nb\n\nc\nd\ne\nf\ng\n") // the limit is 5
	require.Equal(t, http.StatusOK, code)
	for range 4 {
		d := <-on.came
		defer d.Done(workers.Outcome{})
	}
	depth := on.queues.messages.Depth(queue.Key{Namespace: "ns", Worker: "w"})
	require.Equal(t, []int{1, 4}, []int{depth.Waiting, depth.InFlight})
	code, _ = post("batch", strings.Repeat("x\n", workers.MaxBatch+1))
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	for _, query := range []string{"timeout=2h", "delay=25h", "expire=0s", "delay=2s&expire=1s", "delay=x"} {
		code, _ = post(query, "x")
		require.Equal(t, http.StatusBadRequest, code, query)
	}
	on.queues.dispatch.Purge(queue.Key{Namespace: "ns", Worker: "w"}, false)
	code, _ = post("delay=1h&expire=2h", "later")
	require.Equal(t, http.StatusAccepted, code)
	m := on.queues.messages.List(queue.Key{Namespace: "ns", Worker: "w"}, queue.Delayed, 0, 10)[0]
	require.Equal(t, []time.Duration{time.Hour, 2 * time.Hour}, []time.Duration{
		m.Due.Sub(m.Arrived).Round(time.Minute), m.Expires.Sub(m.Arrived).Round(time.Minute),
	})
}

// TestNodesMayNotSend checks that a node, which has the rights of a former version's role, sends no messages.
func TestNodesMayNotSend(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtMostOnce))
	srv, _ := on.serve(nil, t, &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}})
	res, err := srv.Client().Post(srv.URL, "text/plain", strings.NewReader("forged"))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusForbidden, res.StatusCode)
}
