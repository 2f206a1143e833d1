package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	kindcache "github.com/coracle-dev/coracle/pkg/state/cache"
)

type rawEvent struct {
	Type   string
	Object struct {
		Kind     string
		Metadata metav1.ObjectMeta
		Code     int
		Rows     []metav1.TableRow
		Columns  []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}
}

// watching opens a watch and returns a function that reads the next event; false at the end of the stream.
func (w *world) watching(path string, headers ...string) func() (rawEvent, bool) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+path, nil)
	require.NoError(w.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := w.http.Do(req)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(w.t, 200, res.StatusCode)
	in := bufio.NewReader(res.Body)
	return func() (e rawEvent, ok bool) {
		w.t.Helper()
		line, err := in.ReadBytes('\n')
		if err != nil {
			return e, false
		}
		require.NoError(w.t, json.Unmarshal(line, &e), "%s", line)
		return e, true
	}
}

// onlyError returns the error event of a stream, which must have no other event.
func onlyError(t *testing.T, stream []byte) (status metav1.Status) {
	t.Helper()
	var e struct {
		Type   string
		Object metav1.Status
	}
	require.NoError(t, json.Unmarshal(stream, &e), "%s", stream)
	require.Equal(t, string(watch.Error), e.Type)
	return e.Object
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	const maps = "/api/v1/namespaces/d/configmaps"
	make1 := func(name string) reply {
		r := w.do(w.http, "POST", maps,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`","labels":{"n":"`+name+`"}}}`)
		require.Equal(t, 201, r.code, "%s", r.body)
		return r
	}
	var first corev1.ConfigMap
	require.NoError(t, json.Unmarshal(make1("a").body, &first))

	t.Run("from now and from a revision", func(t *testing.T) {
		from := w.watching(maps + "?watch=true&resourceVersion=" + first.ResourceVersion)
		old := w.watching("/api/v1/watch/namespaces/d/configmaps?resourceVersion=" + first.ResourceVersion)
		all := w.watching(maps + "?watch=true")
		one := w.watching("/api/v1/watch/namespaces/d/configmaps/b")
		make1("b")
		e, _ := from()
		require.Equal(t, "ADDED", e.Type)
		require.Equal(t, "b", e.Object.Metadata.Name)
		e, _ = old()
		require.Equal(t, "b", e.Object.Metadata.Name)
		e, _ = all()
		require.Equal(t, "a", e.Object.Metadata.Name)
		e, _ = one()
		require.Equal(t, "b", e.Object.Metadata.Name)
		w.do(w.http, "PATCH", maps+"/b", `{"data":{"x":"y"}}`, "Content-Type", "application/merge-patch+json")
		e, _ = from()
		require.Equal(t, "MODIFIED", e.Type)
		before := e.Object.Metadata.ResourceVersion
		w.do(w.http, "DELETE", maps+"/b", "")
		e, _ = from()
		require.Equal(t, "DELETED", e.Type)
		require.NotEqual(t, before, e.Object.Metadata.ResourceVersion)
	})

	t.Run("the end of the initial events of a watch that asks for bookmarks", func(t *testing.T) {
		for _, revision := range []string{"", "0"} {
			next := w.watching(maps + "?watch=true&allowWatchBookmarks=true&resourceVersion=" + revision)
			e, _ := next()
			require.Equal(t, "ADDED", e.Type)
			e, _ = next()
			require.Equal(t, "BOOKMARK", e.Type)
			require.Equal(t, "true", e.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey])
		}
	})

	t.Run("initial events and bookmarks", func(t *testing.T) {
		next := w.watching(maps +
			"?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=3")
		e, _ := next()
		require.Equal(t, "ADDED", e.Type)
		e, _ = next()
		require.Equal(t, "BOOKMARK", e.Type)
		require.Equal(t, "true", e.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey])
		e, _ = next() // ends after timeoutSeconds
		require.Equal(t, "BOOKMARK", e.Type)
		require.Empty(t, e.Object.Metadata.Annotations)
		_, ok := next()
		require.False(t, ok)
	})

	t.Run("table", func(t *testing.T) {
		next := w.watching(maps+"?watch=true", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		e, _ := next()
		require.Equal(t, "Table", e.Object.Kind)
		require.NotEmpty(t, e.Object.Columns)
		require.Equal(t, "a", e.Object.Rows[0].Cells[0])
		make1("c")
		e, _ = next()
		require.Empty(t, e.Object.Columns)
		require.Equal(t, "c", e.Object.Rows[0].Cells[0])
	})

	t.Run("WebSocket", func(t *testing.T) {
		config, err := websocket.NewConfig("wss"+strings.TrimPrefix(w.url, "https")+maps+"?watch=true", "https://localhost")
		require.NoError(t, err)
		config.TlsConfig = w.http.Transport.(*http.Transport).TLSClientConfig.Clone()
		config.TlsConfig.NextProtos = nil
		ws, err := websocket.DialConfig(config)
		require.NoError(t, err)
		var e rawEvent
		require.NoError(t, websocket.JSON.Receive(ws, &e))
		require.Equal(t, "ADDED", e.Type)
		require.NoError(t, ws.Close())
	})

	t.Run("expired", func(t *testing.T) {
		for i := range 2 * ringSize {
			w.do(w.http, "PATCH", maps+"/a", fmt.Sprintf(`{"data":{"x":"%d"}}`, i), "Content-Type",
				"application/merge-patch+json")
		}
		// As upstream, the error is an event, not the response.
		r := w.do(w.http, "GET", maps+"?watch=true&resourceVersion="+first.ResourceVersion+"&timeoutSeconds=5", "")
		require.Equal(t, 200, r.code, "%s", r.body)
		status := onlyError(t, r.body)
		require.Equal(t, metav1.StatusReasonExpired, status.Reason)
		require.EqualValues(t, 410, status.Code)
	})

	t.Run("from a revision of the future", func(t *testing.T) {
		var last corev1.ConfigMap
		require.NoError(t, json.Unmarshal(make1("now").body, &last))
		now, err := strconv.ParseInt(last.ResourceVersion, 10, 64)
		require.NoError(t, err)
		far := maps + "?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=" +
			strconv.FormatInt(now+1_000_000, 10)
		r := w.do(w.http, "GET", far, "")
		require.Equal(t, 200, r.code, "%s", r.body)
		require.Empty(t, r.body, "neither an event nor a bookmark")

		next := w.watching(maps + "?watch=true&resourceVersion=" + strconv.FormatInt(now+1, 10))
		make1("not-sent")
		make1("sent")
		e, _ := next()
		require.Equal(t, "ADDED", e.Type)
		require.Equal(t, "sent", e.Object.Metadata.Name)

		r = w.do(w.http, "GET", far+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "")
		require.Equal(t, 200, r.code, "%s", r.body)
		status := onlyError(t, r.body)
		require.EqualValues(t, 504, status.Code)
		require.Contains(t, status.Message, "Too large resource version")
		require.Equal(t, metav1.CauseTypeResourceVersionTooLarge, status.Details.Causes[0].Type)
	})

	t.Run("protobuf informer", func(t *testing.T) {
		cs, err := kubernetes.NewForConfigAndClient(&rest.Config{
			Host:          w.url,
			QPS:           -1,
			ContentConfig: rest.ContentConfig{ContentType: typeProto, AcceptContentTypes: typeProto + "," + typeJSON},
		}, w.http)
		require.NoError(t, err)
		stop := make(chan struct{})
		f := informers.NewSharedInformerFactory(cs, 0)
		seen := make(chan string, 100)
		_, err = f.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { seen <- "+" + o.(*corev1.ConfigMap).Name },
			DeleteFunc: func(o any) { seen <- "-" + o.(*corev1.ConfigMap).Name },
		})
		require.NoError(t, err)
		f.Start(stop)
		f.WaitForCacheSync(stop)
		make1("p")
		for want := range map[string]bool{"+p": true} {
			for got := range seen {
				if got == want {
					break
				}
			}
		}
		w.do(w.http, "DELETE", maps+"/p", "")
		for got := range seen {
			if got == "-p" {
				break
			}
		}
		close(stop)
		f.Shutdown()
	})
}

func TestStopEndsWatches(t *testing.T) {
	w := newWorld(t)
	next := w.watching("/api/v1/namespaces?watch=true")
	w.stop()
	for {
		if _, ok := next(); !ok {
			break
		}
	}
}

// distant is a listener whose clients are on another machine.
type distant struct{ net.Listener }

func (l distant) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return distantConn{c}, nil
}

type distantConn struct{ net.Conn }

func (distantConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// Each batch reaches the client at once. An idle watch holds no compressor.
func TestWatchesOfDistantClientsThatListAreCompressed(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Listener = distant{c.Listener} })
	w.namespace("d")
	const maps = "/api/v1/namespaces/d/configmaps"
	write := func(name string) {
		w.do(w.http, "POST", maps,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"},"data":{"a":"`+strings.Repeat("x", 10_000)+
				`"}}`)
	}
	write("a")
	for query, packed := range map[string]bool{
		"?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan": true,
		"?watch=true&resourceVersion=1": false,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+maps+query, nil)
		require.NoError(t, err)
		req.Header.Set("Accept-Encoding", "gzip") // keeps the transport from decompressing
		res, err := w.http.Do(req)
		require.NoError(t, err)
		require.Equal(t, packed, res.Header.Get("Content-Encoding") == "gzip")
		cancel()
		_ = res.Body.Close()
		if !packed {
			continue
		}
		next := w.watching(maps + query) // the transport decompresses, as client-go's does
		for _, want := range []string{"a", "", "b", "c"} {
			if want > "a" {
				write(want)
			}
			e, _ := next()
			require.Equal(t, want, e.Object.Metadata.Name)
		}
	}
}

func BenchmarkWatchFrame(b *testing.B) {
	v := &watching{to: discard{}}
	p := podNamed("x")
	raw, _ := json.Marshal(p)
	b.ReportAllocs()
	for b.Loop() {
		_ = v.json(watch.Added, raw)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// All events up to a bookmark's revision have been sent, also if events wait when the bookmark is due or the watch
// ends.
func TestBookmarksDoNotPassEvents(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	row := w.cfg.Kinds.Table().ByGVR(corev1.SchemeGroupVersion.WithResource("configmaps"))
	watcher, _, sync, err := w.cfg.Cache.Watch(row, kindcache.Query{Namespace: "d"}, -1)
	require.NoError(t, err)
	defer watcher.Close()
	_, err = w.clientset(w.http).CoreV1().ConfigMaps("d").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "waiting"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	out := httptest.NewRecorder()
	v := &watching{
		s: w.srv, t: registry.Target{Resource: row, Namespace: "d"}, n: answer{media: mediaJSON},
		o:   metav1.ListOptions{AllowWatchBookmarks: true},
		ctx: over, rc: http.NewResponseController(out), to: out, rev: sync, sentEvents: w.srv.metrics.events(row),
	}
	require.NoError(t, v.run(watcher, nil, sync))
	var e rawEvent
	require.NoError(t, json.Unmarshal(out.Body.Bytes(), &e), "%s", out.Body)
	require.Equal(t, "BOOKMARK", e.Type)
	require.Equal(t, itoa(sync), e.Object.Metadata.ResourceVersion, "the event at a later revision was not sent")
}
