package workers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	streams "github.com/coracle-dev/coracle/pkg/systems/workers/sender"
)

// streaming is a connection to a service with a pod on this node ("local") and one on another node.
type streaming struct {
	sealed
	mu   sync.Mutex
	held int
	most int
	came chan *workers.Delivery
	full bool
}

func (c *streaming) Target() (*kind.Resource, string, string) {
	return &kind.Resource{Plural: "services"}, "ns", "w"
}

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
		w.WriteHeader(int(status.ErrStatus.Code))
	}
}

func (c *streaming) LocalNode(string) localNode { return c }

func (c *streaming) Accept(list []*workers.Delivery) {
	for _, d := range list {
		if c.full {
			d.Done(workers.Delivered{
				BatchOutcome: workers.BatchOutcome{Failure: workers.QueueFull, Text: "full", Untouched: true},
			})
			continue
		}
		if d.Deadline.IsZero() {
			d.Done(workers.Delivered{})
		} else {
			d.Cancel = sync.OnceFunc(func() {
				d.Done(workers.Delivered{BatchOutcome: workers.BatchOutcome{Failure: workers.HandlerTimeout, Text: "gone"}})
			})
		}
		c.came <- d
	}
}

func streamTo(t *testing.T, on *streaming, who user.Info) (*streams.Sender, *sync.WaitGroup) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{NodeName: "local"}}
	var serving sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		serving.Add(1)
		defer serving.Done()
		sender{
			messaging:  &messaging{local: on.LocalNode, host: system.Host{Seal: on.Seal}},
			on:         on,
			candidates: func() []*corev1.Pod { return []*corev1.Pod{pod} },
		}.ServeHTTP(w, req.WithContext(request.WithUser(req.Context(), who)))
	}))
	t.Cleanup(s.Close)
	return streams.New(s.Client(), s.URL), &serving
}

func TestStream(t *testing.T) {
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated}}
	on := &streaming{most: 1 << 20, came: make(chan *workers.Delivery, 100)}
	s, serving := streamTo(t, on, ann)
	require.NoError(t, s.Send(t.Context(), streams.Message{Payload: []byte("note")}))
	d := <-on.came
	require.Equal(t, "note", string(d.Payload))
	require.Equal(t, "application/octet-stream", d.ContentType)

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
	reply := func(d *workers.Delivery) {
		d.Done(workers.Delivered{BatchOutcome: workers.BatchOutcome{Payload: append([]byte("re: "), d.Payload...)}})
	}
	first, second := call(t.Context(), "1"), call(t.Context(), "2")
	a, b := <-on.came, <-on.came
	reply(b)
	reply(a)
	require.NoError(t, <-first)
	require.NoError(t, <-second)

	failed := call(t.Context(), "3")
	d = <-on.came
	d.Done(workers.Delivered{
		BatchOutcome: workers.BatchOutcome{Failure: workers.HandlerFailed, Text: "no", ErrorType: "T"},
	})
	require.Equal(t, &streams.Error{Code: 500, Reason: "HandlerFailed", Message: "pod p: no"}, <-failed)

	ctx, cancel := context.WithCancel(t.Context())
	gone := call(ctx, "4")
	<-on.came
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)

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

	on.full = true // the node refuses, so the message is sent as a separate request
	require.NoError(t, s.Send(t.Context(), streams.Message{Payload: []byte("elsewhere")}))
	require.NotNil(t, on.got)
	on.full = false

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

// TestStreamEnds checks that the replies to a disconnected sender are dropped.
func TestStreamEnds(t *testing.T) {
	on := &streaming{most: 1 << 20, came: make(chan *workers.Delivery, 100)}
	who := &user.DefaultInfo{Name: "ann"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer close(served)
		sender{
			messaging:  &messaging{local: on.LocalNode, host: system.Host{Seal: on.Seal}},
			on:         on,
			candidates: func() []*corev1.Pod { return []*corev1.Pod{pod} },
		}.ServeHTTP(w, req.WithContext(request.WithUser(ctx, who)))
	}))
	defer srv.Close()
	s := streams.New(srv.Client(), srv.URL)
	got := make(chan error, 1)
	go func() {
		_, err := s.Call(t.Context(), streams.Message{Payload: []byte("x")})
		got <- err
	}()
	<-on.came
	cancel() // as if the server stopped
	var lost *streams.Error
	require.ErrorAs(t, <-got, &lost)
	require.Contains(t, []int{502, 504}, lost.Code)
	<-served
	require.Zero(t, on.held)
	s.Close()
}

func TestNodesDoNotStream(t *testing.T) {
	on := &streaming{}
	s, _ := streamTo(t, on, &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}})
	var refused *streams.Error
	require.ErrorAs(t, s.Send(t.Context(), streams.Message{}), &refused)
	require.Equal(t, 403, refused.Code)
	s.Close()
}
