package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// cluster is a Dispatcher with the pods of this process's node. The test acts as their programs and as the informers.
type cluster struct {
	*Dispatcher
	t      *testing.T
	queues *queue.Local

	mu        sync.Mutex
	got       []*workers.Delivery
	patches   []string
	published []published
	refusal   error // of publish
}

func (c *cluster) Accept(list []*workers.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, list...)
}

// client accepts patches of statuses.
type statuses struct {
	client.Interface
	c *cluster
}

type statusWriter struct {
	ctrl.SubResourceWriter
	c *cluster
}

func (s statuses) Status() ctrl.SubResourceWriter { return statusWriter{c: s.c} }

func (s statusWriter) Patch(_ context.Context, o ctrl.Object, p ctrl.Patch, _ ...ctrl.SubResourcePatchOption) error {
	text, err := p.Data(o)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.patches = append(s.c.patches, string(text))
	return err
}

// patched returns the patches of statuses up to now.
func (c *cluster) patched() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.patches)
}

func run(t *testing.T, f func(c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t}
		var err error
		c.queues, err = queue.Open(queue.Config{
			File: filepath.Join(t.TempDir(), "queues.db"), Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		c.Dispatcher = New(Config{
			Queues: c.queues, Client: statuses{c: c}, Server: "server", Logger: slog.New(slog.DiscardHandler),
			Publish: c.publish,
			Local: func(node string) Node {
				if node == "here" {
					return c
				}
				return nil
			},
			Connect: func(context.Context, string) (*url.URL, http.RoundTripper, error) { return nil, nil, errors.New("off") },
		})
		c.pods = true // the test is the informer
		f(c)
		c.Stop()
		require.NoError(t, c.queues.Close())
	})
}

var key = queue.Key{Namespace: "ns", Worker: "w"}

func (c *cluster) worker(name string, change func(*workers.WorkerSpec)) *workers.Worker {
	w := &workers.Worker{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:       workers.WorkerSpec{Image: "i"},
	}
	if change != nil {
		change(&w.Spec)
	}
	workers.Default(w)
	c.setWorker(w)
	return w
}

func atLeastOnce(s *workers.WorkerSpec) {
	s.Delivery = workers.WorkerDelivery{Promise: workers.AtLeastOnce, MaxAttempts: 3}
}

func (c *cluster) ready(name string) *corev1.Pod {
	return c.readyWith(name, `{"worker": "w", "concurrency": 1}`)
}

func (c *cluster) readyWith(name, annotation string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name),
			Annotations: map[string]string{workers.AnnotationQueue: annotation},
		},
		Spec: corev1.PodSpec{NodeName: "here"},
	}
	c.pod(p, true, false)
	return p
}

// send sends messages without a wait for the reply.
func (c *cluster) send(ids ...string) {
	list := make([]Message, len(ids))
	for i, id := range ids {
		list[i].Message = queue.Message{ID: id, Payload: []byte("text " + id)}
	}
	w := c.workers[types.NamespacedName{Namespace: "ns", Name: "w"}]
	for _, err := range c.Send(key, workers.QueueOf(w), list)() {
		require.NoError(c.t, err)
	}
}

// call sends a message and returns the channel of its outcome.
func (c *cluster) call(id string, wait time.Duration) chan Outcome {
	got := make(chan Outcome, 2)
	w := c.workers[types.NamespacedName{Namespace: "ns", Name: "w"}]
	require.NoError(c.t, c.Send(key, workers.QueueOf(w), []Message{{
		Message: queue.Message{ID: id}, Deadline: time.Now().Add(wait), Done: func(o Outcome) { got <- o },
	}})()[0])
	return got
}

// take returns the deliveries since the last take, as ID@POD#ATTEMPT.
func (c *cluster) take() (list []*workers.Delivery, names []string) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	list, c.got = c.got, nil
	for _, d := range list {
		names = append(names, fmt.Sprintf("%s@%s#%d", d.ID, d.Pod, d.Attempt))
	}
	return list, names
}

func (c *cluster) takes(names ...string) []*workers.Delivery {
	c.t.Helper()
	list, got := c.take()
	require.ElementsMatch(c.t, names, got)
	return list
}

var (
	handled = workers.Outcome{}
	bad     = workers.Outcome{Failure: workers.HandlerFailed, Text: "bad"}
)
