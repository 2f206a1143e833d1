package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// filled returns a world with a namespace of n pods of about 3 KB each.
func filled(b *testing.B, n int) *world {
	w := newWorld(b)
	w.namespace("d")
	w.do(w.http, "POST", "/api/v1/namespaces/d/serviceaccounts", `{"metadata":{"name":"default"}}`)
	var wg sync.WaitGroup
	for part := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := part; i < n; i += 16 {
				w.createPod(b, fmt.Sprintf("pod-%05d", i))
			}
		}()
	}
	wg.Wait()
	return w
}

func (w *world) createPod(b testing.TB, name string) {
	p := podNamed(name)
	p.Kind, p.APIVersion = "Pod", "v1"
	for i := range 20 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: "a value of some length"})
	}
	raw, _ := json.Marshal(p)
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, w.url+"/api/v1/namespaces/d/pods", strings.NewReader(string(raw)))
	res, err := w.http.Do(req)
	require.NoError(b, err)
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	require.Equal(b, 201, res.StatusCode, "%s", body)
}

func (w *world) read(b *testing.B, path, accept string) {
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, w.url+path, nil)
	req.Header.Set("Accept", accept)
	res, err := w.http.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	n, _ := io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	b.SetBytes(n)
	if res.StatusCode != 200 {
		b.Fatal(res.Status)
	}
}

func BenchmarkGet(b *testing.B) {
	w := filled(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.read(b, "/api/v1/namespaces/d/pods/pod-00000", typeJSON)
	}
}

func BenchmarkList3000(b *testing.B) {
	w := filled(b, 3000)
	h1 := w.as("admin", "system:masters")
	h1.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	h2 := w.http
	for name, c := range map[string]*http.Client{"http1": h1, "http2": h2} {
		w.http = c
		for _, accept := range []string{typeJSON, typeProto, "application/json;as=Table;v=v1;g=meta.k8s.io"} {
			short, _, _ := strings.Cut(strings.TrimPrefix(accept, "application/"), ";v")
			b.Run(name+"/"+short, func(b *testing.B) {
				for b.Loop() {
					w.read(b, "/api/v1/namespaces/d/pods", accept)
				}
			})
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 32} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			w := filled(b, 0)
			var n atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range writers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							return
						}
						w.createPod(b, fmt.Sprintf("p-%d", i))
					}
				}()
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}

// BenchmarkWatchFanOut measures the time from a commit to the event at the last watcher.
func BenchmarkWatchFanOut(b *testing.B) {
	for _, c := range []struct {
		watchers int
		http2    bool
	}{{1, true}, {100, true}, {1000, true}, {1000, false}} {
		watchers := c.watchers
		b.Run(fmt.Sprintf("%d/http2=%v", watchers, c.http2), func(b *testing.B) {
			w := filled(b, 0)
			w.http.Transport.(*http.Transport).ForceAttemptHTTP2 = c.http2
			ctx, cancel := context.WithCancel(context.Background())
			var seen atomic.Int64
			all := make(chan struct{}, 1)
			var done sync.WaitGroup
			for range watchers {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/namespaces/d/pods?watch=true", nil)
				res, err := w.http.Do(req)
				require.NoError(b, err)
				done.Add(1)
				go func() {
					defer done.Done()
					defer res.Body.Close()
					in := bufio.NewReaderSize(res.Body, 8<<10)
					for {
						if _, err := in.ReadSlice('\n'); err != nil {
							return
						}
						if seen.Add(1)%int64(watchers) == 0 {
							all <- struct{}{}
						}
					}
				}()
			}
			i := 0
			var total time.Duration
			for b.Loop() {
				w.createPod(b, fmt.Sprintf("p-%d", i))
				began := time.Now()
				<-all
				total += time.Since(began)
				i++
			}
			b.ReportMetric(float64(total.Microseconds())/float64(i), "us-after-answer")
			cancel()
			done.Wait()
		})
	}
}
