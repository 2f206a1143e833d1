package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/systems/workers/sender"
)

const (
	messageTime    = 4 * time.Second // the duration of each measurement
	messageSenders = 32
	messageBatch   = 100 // the number of lines in a batch
	sharedSenders  = 256
	workerImage    = "docker.io/coracle/worker:latest"
)

// messages measures messages to an echo worker through one node, beside an HTTP server in a pod behind the API
// server's proxy. test/bench/nats is the yardstick. It does nothing on clusters without Workers.
func messages(ctx context.Context, c *cluster) (figures []figure, err error) {
	if _, err := c.client.Discovery().ServerResourcesForGroupVersion("workers.coracle.dev/v1alpha1"); err != nil {
		return nil, nil //nolint:nilerr // another cluster
	}
	const ns = "bench-messages"
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, namespace(ns), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	defer func() { err = join(err, c.remove(ctx, ns)) }()
	if err := c.messagePods(ctx, ns); err != nil {
		return nil, err
	}
	s, err := newSender(c)
	if err != nil {
		return nil, err
	}
	defer s.CloseIdleConnections()
	base := strings.TrimSuffix(c.config.Host, "/") + "/api/v1/namespaces/" + ns + "/pods/"
	send := func(query string) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			return s.do(ctx, http.MethodPost, base+"echo/message"+query, "hello")
		}
	}
	proxy := func(ctx context.Context) (int, error) {
		return s.do(ctx, http.MethodGet, base+"web:8080/proxy/index.html", "")
	}
	for _, ready := range []func(context.Context) (int, error){send("?wait=true"), proxy} {
		if err := until(ctx, ready); err != nil {
			return nil, err
		}
	}
	one, err := newSender(c)
	if err != nil {
		return nil, err
	}
	defer one.CloseIdleConnections()
	stream := sender.New(one.Client, base+"echo/message")
	defer stream.Close()
	request := func(ctx context.Context) (int, error) {
		_, err := stream.Call(ctx, sender.Message{Payload: []byte("hello")})
		return http.StatusOK, err
	}
	durable := sender.New(one.Client, base+"kept/message")
	defer durable.Close()
	kept := func(ctx context.Context) (int, error) {
		return http.StatusOK, durable.Send(ctx, sender.Message{Payload: []byte("hello")})
	}
	note := func(ctx context.Context) (int, error) {
		return http.StatusOK, stream.Send(ctx, sender.Message{Payload: []byte("hello")})
	}
	lines := strings.Repeat("hello\n", messageBatch) // keeps as many messages in flight as the echo accepts
	batch := func(pod, query string) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			return s.do(ctx, http.MethodPost, base+pod+"/message"+query, lines)
		}
	}
	pooled, end := manySenders(one.Client, strings.TrimSuffix(base, "pods/")+"services/shared/message")
	defer end()
	if err := until(ctx, pooled); err != nil {
		return nil, err
	}
	for _, m := range []messageLoad{
		{"messages and replies, a request each, 1 at once", 1, 1, 0, send("?wait=true")},
		{"messages and replies, a request each, 32 at once", messageSenders, 1, 0, send("?wait=true")},
		{"messages and replies on one connection, 1 at once", 1, 1, 0, request},
		{"messages and replies on one connection, 8 at once", 8, 1, 10000, request},
		{"messages and replies on one connection, 32 at once", messageSenders, 1, 10000, request},
		{"messages and replies in batches of 100, 4 at once", 4, messageBatch, 10000, batch("echo", "?batch&wait=true")},
		{"the same to a program that takes batches of 100", 4, messageBatch, 0, batch("batched", "?batch&wait=true")},
		{"messages without replies, a request each, 32 at once", messageSenders, 1, 0, send("")},
		{"messages without replies on one connection, 128 at once", 128, 1, 20000, note},
		{"messages without replies in batches of 100, 4 at once", 4, messageBatch, 20000, batch("echo", "?batch")},
		{"messages kept on disk on one connection, 256 at once", 256, 1, 10000, kept},
		{"messages to a shared queue, each synced, 256 senders", sharedSenders, 1, 10000, pooled},
		{"GETs of a pod's HTTP server through the proxy, 32 at once", messageSenders, 1, 0, proxy},
	} {
		figures = append(figures, m.measure(ctx, c))
	}
	return figures, nil
}

// manySenders returns a function that sends with the next of sharedSenders senders, each with a connection of its own.
func manySenders(client *http.Client, url string) (send func(context.Context) (int, error), end func()) {
	idle := make(chan *sender.Sender, sharedSenders)
	for range sharedSenders {
		idle <- sender.New(client, url)
	}
	send = func(ctx context.Context) (int, error) {
		s := <-idle
		defer func() { idle <- s }()
		return http.StatusOK, s.Send(ctx, sender.Message{Payload: []byte("hello")})
	}
	return send, func() {
		for range sharedSenders {
			s := <-idle
			s.Close()
		}
	}
}

// messageLoad is one way to send: the number of concurrent senders, and the number of messages in each call of f.
type messageLoad struct {
	name          string
	senders, each int
	budget        float64
	f             func(context.Context) (int, error)
}

func (m messageLoad) measure(ctx context.Context, c *cluster) figure {
	before := c.processorTime()
	rate, latency := load(ctx, m.senders, m.f)
	note := fmt.Sprintf("p50 %v", percentile(latency, 50).Round(10*time.Microsecond))
	if c.options.pids != "" {
		after := c.processorTime()
		each := func(i int) float64 {
			return float64((after[i] - before[i]).Microseconds()) / float64(max(1, len(latency)*m.each))
		}
		note += fmt.Sprintf("; CPU us each: server %.0f, pods %.0f, sender %.0f", each(0), each(1), each(2))
	}
	return figure{
		Name:   m.name,
		Value:  rate * float64(m.each),
		Unit:   "per s",
		Budget: m.budget,
		More:   true,
		Note:   note,
	}
}

func (c *cluster) messagePods(ctx context.Context, ns string) error {
	worker := func(name, queue string) *corev1.Pod {
		p := c.pod(name)
		p.Annotations = map[string]string{"workers.coracle.dev/queue": queue}
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = workerImage, nil
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "WORKER_FUNCTION", Value: "echo"}, {Name: "WORKER_CONCURRENCY", Value: "64"},
		}
		return p
	}
	echo := worker("echo", `{"concurrency": 64, "limit": 100000}`)
	kept := worker("kept", `{"concurrency": 64, "limit": 100000, "promise": "AtLeastOnce"}`)
	// Echo's reply to a batch, an object without batchItemFailures, means that all messages are done.
	batched := worker("batched", `{"concurrency": 64, "limit": 100000, "batch": {"size": 100}}`)
	pods := []*corev1.Pod{echo, kept, batched}
	for _, name := range []string{"shared-0", "shared-1"} {
		p := worker(name, `{"worker": "shared", "concurrency": 64, "limit": 100000, "promise": "AtLeastOnce"}`)
		p.Labels = map[string]string{"app": "shared"}
		pods = append(pods, p)
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "shared"},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "shared"}},
	}
	if _, err := c.client.CoreV1().Services(ns).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		return err
	}
	web := c.pod("web")
	web.Spec.Containers[0].Command = []string{
		"sh", "-c", "mkdir /tmp/w; echo hello >/tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w",
	}
	for _, p := range append(pods, web) {
		if _, err := c.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func join(err, other error) error {
	if err == nil {
		return other
	}
	return err
}

// httpSender sends requests over as many connections as there are senders.
type httpSender struct{ *http.Client }

func newSender(c *cluster) (*httpSender, error) {
	config := rest.CopyConfig(c.config)
	config.NextProtos = []string{"http/1.1"}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	return &httpSender{
		&http.Client{
			Transport: &http.Transport{
				TLSClientConfig:     tlsConfig,
				MaxIdleConnsPerHost: messageSenders,
				DialContext:         newDialer().DialContext,
			},
		},
	}, nil
}

func (s *httpSender) do(ctx context.Context, method, url, text string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(text))
	if err != nil {
		return 0, err
	}
	res, err := s.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode, err
}

func until(ctx context.Context, f func(context.Context) (int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	for {
		code, err := f(ctx)
		if err == nil && code < 300 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %d: %w", code, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// load calls f from n goroutines for messageTime, and returns the successes per second and the duration of each call.
func load(ctx context.Context, n int, f func(context.Context) (int, error)) (rate float64, took []time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, messageTime)
	defer cancel()
	var good atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := time.Now()
	for range n {
		wg.Go(func() {
			var mine []time.Duration
			for ctx.Err() == nil {
				at := time.Now()
				code, err := f(ctx)
				if err == nil && code < 300 {
					good.Add(1)
					mine = append(mine, time.Since(at))
				}
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return float64(good.Load()) / time.Since(began).Seconds(), took
}
