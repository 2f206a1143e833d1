package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/registry"
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
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{
			Name: fmt.Sprintf("VARIABLE_%d", i), Value: "a value of some length",
		})
	}
	raw, _ := json.Marshal(p)
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, w.url+"/api/v1/namespaces/d/pods",
		strings.NewReader(string(raw)))
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
				b.ReportAllocs()
				before := processor(b)
				for b.Loop() {
					w.read(b, "/api/v1/namespaces/d/pods", accept)
				}
				b.ReportMetric(float64((processor(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

// BenchmarkCreate creates pods, over connections that coalesce writes and plain ones.
func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 32} {
		for _, plain := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/plain=%v", writers, plain), func(b *testing.B) {
				w := filled(b, 0)
				url, writes, stop := w.serve(b, plain)
				w.url = url
				var n atomic.Int64
				b.ReportAllocs()
				before := processor(b)
				b.ResetTimer()
				var wg sync.WaitGroup
				for range writers {
					wg.Go(func() {
						for {
							i := n.Add(1)
							if i > int64(b.N) {
								return
							}
							w.createPod(b, fmt.Sprintf("p-%d", i))
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
				b.ReportMetric(float64((processor(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
				b.ReportMetric(float64(writes.Load())/float64(b.N), "writes/op")
				stop()
			})
		}
	}
}

// BenchmarkStack writes on a goroutine of its own each time, as requests do, with a stack that is grown at once and one
// that grows as it goes.
func BenchmarkStack(b *testing.B) {
	for _, grown := range []bool{true, false} {
		b.Run(fmt.Sprintf("grown=%v", grown), func(b *testing.B) {
			w := filled(b, 1)
			r := w.cfg.Kinds.Table().ByGVR(corev1.SchemeGroupVersion.WithResource("pods"))
			o := w.cfg.Cache.Get(r, "d", "pod-00000").Object.(*corev1.Pod).DeepCopy()
			o.ResourceVersion, o.UID = "", ""
			ctx := apirequest.WithUser(b.Context(), &user.DefaultInfo{
				Name: "admin", Groups: []string{user.SystemPrivilegedGroup},
			})
			before := processor(b)
			done := make(chan error)
			i := 0
			for b.Loop() {
				i++
				p := o.DeepCopy()
				p.Name = fmt.Sprintf("p-%d", i)
				go func() {
					if grown {
						growStack()
					}
					_, err := w.cfg.Registry.Create(ctx, registry.Target{Resource: r, Namespace: "d"}, p,
						metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
					done <- err
				}()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processor(b)-before).Microseconds())/float64(i), "cpu-us/op")
		})
	}
}

// processor is the processor time that this process has used.
func processor(b *testing.B) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWatchFanOut measures the time from a commit until the last watcher has the event, and the processor time
// of the server and the watchers, with coalescing and with plain connections.
func BenchmarkWatchFanOut(b *testing.B) {
	for _, c := range []struct {
		watchers int
		http2    bool
	}{{1, true}, {100, true}, {1000, true}, {1000, false}} {
		for _, plain := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/http2=%v/plain=%v", c.watchers, c.http2, plain), func(b *testing.B) {
				fanOut(b, c.watchers, c.http2, plain)
			})
		}
	}
}

// counted counts the writes of a listener's connections. Each is a system call.
type counted struct {
	net.Listener
	writes atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countedConn{c, &l.writes}, nil
}

type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// serve serves the API on a second address, with connections that coalesce writes or plain ones.
func (w *world) serve(b *testing.B, plain bool) (url string, writes *atomic.Int64, stop func()) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	t := w.cfg.TLS.Clone()
	t.ClientAuth, t.NextProtos, t.DynamicRecordSizingDisabled = tls.RequestClientCert, []string{"h2", "http/1.1"}, true
	h := w.srv.httpServer(t)
	c := &counted{Listener: tcp}
	var l net.Listener = c
	if !plain {
		l = gathering{c, w.srv.cfg.WriteStall}
	}
	ended := make(chan error, 1)
	go func() { ended <- h.ServeTLS(l, "", "") }()
	return "https://" + tcp.Addr().String(), &c.writes, func() {
		require.NoError(b, h.Close())
		<-ended
	}
}

func fanOut(b *testing.B, watchers int, http2, plain bool) {
	w := filled(b, 0)
	url, writes, stop := w.serve(b, plain)
	reader := w.as("admin", "system:masters")
	reader.Transport.(*http.Transport).ForceAttemptHTTP2 = http2
	ctx, cancel := context.WithCancel(context.Background())
	var seen atomic.Int64
	all := make(chan struct{}, 1)
	var done sync.WaitGroup
	for range watchers {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/namespaces/d/pods?watch=true", nil)
		res, err := reader.Do(req)
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
	sent := writes.Load()
	var total time.Duration
	before := processor(b)
	for b.Loop() {
		w.createPod(b, fmt.Sprintf("p-%d", i))
		began := time.Now()
		<-all
		total += time.Since(began)
		i++
	}
	b.ReportMetric(float64(total.Microseconds())/float64(i), "us-after-answer")
	b.ReportMetric(float64((processor(b)-before).Microseconds())/float64(i), "cpu-us/op")
	b.ReportMetric(float64(writes.Load()-sent)/float64(i), "writes/op")
	cancel()
	done.Wait()
	stop()
}
