package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// errEnded means that a watch ended before done returned true.
var errEnded = errors.New("the watch ended")

// follow watches until done returns true. Without a resourceVersion in options, the watch starts with the existing
// objects.
func follow(ctx context.Context, open func(context.Context, metav1.ListOptions) (watch.Interface, error),
	options metav1.ListOptions, done func(watch.Event) bool) error {
	w, err := open(ctx, options)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			switch {
			case !ok:
				return errEnded
			case e.Type == watch.Error:
				return apierrors.FromObject(e.Object)
			case done(e):
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func watchLatency(ctx context.Context, c *cluster, ns string) (figures []figure, err error) {
	const rounds = 20
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	maps := c.client.CoreV1().ConfigMaps(ns)
	object, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}},
		metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	w := &watchers{seen: make([][]time.Time, c.watchers), arrived: make(chan struct{}, rounds*c.watchers)}
	defer w.done.Wait()
	defer cancel()
	// The first watcher has its own connection, like a client on another machine. The others share a few.
	shared := max(1, c.watchers/100)
	transports := make([]*http.Client, 0, 1+shared)
	for range 1 + shared {
		config := rest.CopyConfig(c.config)
		config.Dial = newDialer().DialContext
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, err
		}
		transports = append(transports, client)
		defer client.CloseIdleConnections()
	}
	url := strings.TrimSuffix(c.config.Host, "/") + "/api/v1/namespaces/" + ns +
		"/configmaps?watch=1&fieldSelector=metadata.name%3Dwatched&resourceVersion=" + object.ResourceVersion
	for i := range c.watchers {
		client := transports[0]
		if i > 0 {
			client = transports[1+i%shared]
		}
		if err := w.open(ctx, client, url, i); err != nil {
			return nil, fmt.Errorf("watcher %d: %w", i, err)
		}
	}
	answered := make([]time.Time, 0, rounds)
	for i := range rounds {
		object.Data = map[string]string{"round": strconv.Itoa(i)}
		if object, err = maps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
		answered = append(answered, time.Now())
		for range c.watchers {
			select {
			case <-w.arrived:
			case <-time.After(30 * time.Second):
				return nil, errors.New("an event did not reach all watchers within 30 s")
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	var first, all []time.Duration
	w.mu.Lock()
	defer w.mu.Unlock()
	for round := range rounds {
		for i := range c.watchers {
			late := max(0, w.seen[i][round].Sub(answered[round]))
			all = append(all, late)
			if i == 0 {
				first = append(first, late)
			}
		}
	}
	budget := 0.0
	if c.watchers == 1000 {
		budget = 1
	}
	return []figure{
		millis(fmt.Sprintf("watch: write answered -> event at one client of %d, p50", c.watchers), percentile(first, 50),
			budget),
		millis("  at all of them, p50", percentile(all, 50), 0),
		millis("  at all of them, p99", percentile(all, 99), 0),
	}, nil
}

func watching(ctx context.Context, c *cluster) (figures []figure, err error) {
	err = c.within(ctx, func(ns string) (err error) { figures, err = watchLatency(ctx, c, ns); return err })
	return figures, err
}

// watchers record when each event arrived. They decode no events, so that a thousand clients do not compete with
// the server for processor time.
type watchers struct {
	done    sync.WaitGroup
	mu      sync.Mutex
	seen    [][]time.Time
	arrived chan struct{}
}

func (w *watchers) open(ctx context.Context, client *http.Client, url string, i int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return errors.New(answer.Status)
	}
	w.done.Go(func() {
		defer func() { _ = answer.Body.Close() }()
		lines := bufio.NewReader(answer.Body)
		for {
			if _, err := lines.ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return
			}
			now := time.Now()
			w.mu.Lock()
			w.seen[i] = append(w.seen[i], now)
			w.mu.Unlock()
			w.arrived <- struct{}{}
		}
	})
	return nil
}
