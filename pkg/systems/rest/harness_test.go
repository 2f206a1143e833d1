package rest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

const token = "a-token-of-some-length"

type world struct {
	t      *testing.T
	admin  client.Interface
	server *Server
	url    string
	agent  *agent
	broken *broken
	file   string // of the token
	roots  *x509.CertPool
}

// broken is a client whose creates fail while err is set, and whose changes conflict until the channel changes is full.
type broken struct {
	client.Interface
	mu      sync.Mutex
	err     error
	changes chan time.Time // the times of the attempts
}

func (b *broken) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.UpdateOption) error {
	if err := b.change(); err != nil {
		return err
	}
	return b.Interface.Update(ctx, obj, opts...)
}

func (b *broken) Status() ctrl.SubResourceWriter { return brokenStatus{b.Interface.Status(), b} }

type brokenStatus struct {
	ctrl.SubResourceWriter
	by *broken
}

func (b brokenStatus) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.SubResourceUpdateOption) error {
	if err := b.by.change(); err != nil {
		return err
	}
	return b.SubResourceWriter.Update(ctx, obj, opts...)
}

func (b *broken) change() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.changes) == cap(b.changes) {
		return nil
	}
	b.changes <- time.Now()
	return apierrors.NewConflict(schema.GroupResource{}, "x", nil)
}

func (b *broken) Create(ctx context.Context, obj ctrl.Object, opts ...ctrl.CreateOption) error {
	b.mu.Lock()
	err := b.err
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.Interface.Create(ctx, obj, opts...)
}

// contend makes the next n changes fail with a conflict. The channel returns the times of the attempts.
func (b *broken) contend(n int) chan time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes = make(chan time.Time, n)
	return b.changes
}

func (b *broken) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

type agent struct {
	server *httptest.Server
	mu     sync.Mutex
	down   bool
	old    bool // it keeps no logs of tasks whose pods are deleted
	asked  []string
	more   chan string // lines of a followed log
}

func newAgent(t *testing.T) *agent {
	a := &agent{more: make(chan string)}
	a.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.asked = append(a.asked, r.URL.RequestURI())
		a.mu.Unlock()
		a.mu.Lock()
		old := a.old
		a.mu.Unlock()
		if old && strings.HasPrefix(r.URL.Path, "/taskLogs/") {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "one\ntwo\n")
		if r.URL.Query().Get("follow") == "" {
			return
		}
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case line, ok := <-a.more:
				if !ok {
					return
				}
				_, _ = io.WriteString(w, line+"\n")
				_ = http.NewResponseController(w).Flush()
			}
		}
	}))
	t.Cleanup(a.server.Close)
	return a
}

// Connect implements NodeClient.
func (a *agent) Connect(context.Context, string) (*url.URL, http.RoundTripper, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, nil, errors.New("connection refused")
	}
	u, err := url.Parse(a.server.URL)
	return u, a.server.Client().Transport, err
}

func (a *agent) fail(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
}

func secure(c *Config) { c.RESTInsecure = false }

// newWorld starts a facade, which is insecure by default.
func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	e := registrytest.Start(t, registrytest.Options{Kinds: assembled.Kinds()})
	// The API server sets up the authorizer. The facade has only the rights of its role.
	_, err := apiserver.New(apiserver.Config{
		Registry: e.Registry,
		Cache:    e.Cache,
		Kinds:    e.Kinds,
		Logger:   slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	w := &world{t: t, admin: e.As("admin"), agent: newAgent(t), file: filepath.Join(t.TempDir(), "token")}
	for _, name := range []string{"default", "kube-node-lease", "production"} {
		w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}})
	}
	for _, o := range assembled.Roles() {
		if o.GetName() == User {
			w.create(o)
		}
	}
	require.NoError(t, os.WriteFile(w.file, []byte(token+"\n"), 0o600))
	w.broken = &broken{Interface: e.As(User)}
	cfg := Config{
		REST: config.REST{
			RESTAddress:     "127.0.0.1:1",
			RESTInsecure:    true,
			RESTCORSOrigins: []string{"https://page.example"},
		},
		Client: w.broken, Nodes: w.agent, Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&cfg)
	}
	cfg.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.url = "http://" + cfg.Listener.Addr().String()
	if !cfg.RESTInsecure {
		with := httptest.NewTLSServer(nil)
		with.Close()
		w.url = "https://" + cfg.Listener.Addr().String()
		cfg.TLS, cfg.RESTTokenFile, w.roots = &tls.Config{Certificates: with.TLS.Certificates}, w.file, x509.NewCertPool()
		w.roots.AddCert(with.Certificate())
	}
	w.server, err = New(cfg)
	require.NoError(t, err)
	runtest.Start(t, w.server)
	return w
}

func (w *world) create(o ctrl.Object) {
	w.t.Helper()
	require.NoError(w.t, w.admin.Create(w.t.Context(), o))
}

// followNamespaces creates the account of the next namespace, as a controller does.
func (w *world) followNamespaces() {
	w.t.Helper()
	changes, err := w.admin.Watch(w.t.Context(), &corev1.NamespaceList{})
	require.NoError(w.t, err)
	go func() {
		defer changes.Stop()
		for e := range changes.ResultChan() {
			if n, ok := e.Object.(*corev1.Namespace); ok && n.Labels[view.Managed] == "true" {
				_ = w.admin.Create(w.t.Context(),
					&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: n.Name}})
				return
			}
		}
	}()
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) into(t *testing.T, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.body), v), a.body)
}

func (a answer) says(t *testing.T) string {
	t.Helper()
	var e wire.Error
	a.into(t, &e)
	return e.Error
}

// do sends a request; body is JSON text, a value to encode, or nil. headers are pairs of names and values.
func (w *world) do(method, path string, body any, headers ...string) answer {
	w.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		require.NoError(w.t, err)
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, r)
	require.NoError(w.t, err)
	if r != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: w.roots}}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(w.t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)
	return answer{resp.StatusCode, resp.Header, string(data)}
}

func (w *world) node(name string) {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w.create(n)
}

// run puts a task on a node, like the scheduler and the reconciler, and returns its attempt's pod.
func (w *world) run(id, node string, number int32) *corev1.Pod {
	w.t.Helper()
	var t taskapi.Task
	require.NoError(w.t, w.admin.Get(w.t.Context(), ctrl.ObjectKey{Namespace: "default", Name: id}, &t))
	p := taskapi.Pod(&t, &taskapi.TaskAttempt{Number: number})
	p.Spec.NodeName = node
	w.create(p)
	next := t.DeepCopy()
	next.Status.Phase, next.Status.Node, next.Status.PodName = taskapi.TaskScheduled, node, p.Name
	next.Status.Attempts = append(next.Status.Attempts, taskapi.TaskAttempt{
		Number: number,
		Phase:  taskapi.TaskScheduled,
		Pod:    p.Name,
		PodUID: p.UID,
		Node:   node,
	})
	require.NoError(w.t, w.admin.Status().Update(w.t.Context(), next))
	return p
}

func (w *world) task(name string) string {
	w.t.Helper()
	a := w.do("POST", "/api/v1/tasks", wire.CreateTask{Name: name, Image: "busybox"})
	require.Equal(w.t, http.StatusCreated, a.status, a.body)
	var t wire.Task
	a.into(w.t, &t)
	return t.TaskID
}

func (w *world) register(port int) string {
	w.t.Helper()
	a := w.do("POST", "/api/v1/nodes/register", wire.RegisterNode{
		Hostname: "127.0.0.1", Port: port, CPU: "2", Memory: "2Gi",
	})
	require.Equal(w.t, http.StatusCreated, a.status, a.body)
	var n wire.Node
	a.into(w.t, &n)
	return n.NodeID
}

func (w *world) bind(pod, node string) {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}}
	err := w.admin.SubResource("binding").Create(w.t.Context(), p, &corev1.Binding{
		ObjectMeta: p.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: node},
	})
	require.NoError(w.t, err)
}
