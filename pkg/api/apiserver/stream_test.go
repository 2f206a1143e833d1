package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	clientremote "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	agentforward "k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

type agent struct {
	*httptest.Server
	transport *http.Transport
	log       chan string
}

func (a *agent) Connect(context.Context, string) (*url.URL, http.RoundTripper, error) {
	u, err := url.Parse(a.URL)
	return u, a.transport, err
}

// ExecInContainer echoes the command and then its input.
func (a *agent) ExecInContainer(_ context.Context, name, _, container string, cmd []string, in io.Reader,
	out, _ io.WriteCloser, tty bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	fmt.Fprintf(out, "%s/%s %v tty=%v\n", name, container, cmd, tty)
	if in != nil {
		_, _ = io.Copy(out, in)
	}
	return nil
}

// PortForward echoes its input.
func (a *agent) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	fmt.Fprintf(stream, "port %d\n", port)
	return nil
}

func newAgent(t *testing.T) *agent {
	a := &agent{log: make(chan string, 10)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{ns}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("container") == "waiting" {
			http.Error(w, `container "waiting" in pod "p" is waiting to start: ContainerCreating`, http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "query %s\n", r.URL.RawQuery)
		if r.URL.Query().Get("follow") == "true" {
			w.(http.Flusher).Flush()
			for line := range a.log {
				fmt.Fprintln(w, line)
				w.(http.Flusher).Flush()
			}
		}
	})
	mux.HandleFunc("/exec/{ns}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		o := &remotecommand.Options{
			Stdin:  q.Get("input") == "1",
			Stdout: q.Get("output") == "1",
			Stderr: q.Get("error") == "1",
			TTY:    q.Get("tty") == "1",
		}
		remotecommand.ServeExec(w, r, a, r.PathValue("pod"), "", r.PathValue("container"), q["command"], o, time.Minute,
			time.Minute, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/{ns}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		o, err := agentforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		agentforward.ServePortForward(w, r, a, r.PathValue("pod"), "", o, time.Minute, time.Minute,
			agentforward.SupportedProtocols)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "node %s %q", r.URL.Path, r.Header.Get("Authorization"))
	})
	a.Server = httptest.NewTLSServer(mux)
	t.Cleanup(a.Close)
	a.transport = &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: a.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
	}
	t.Cleanup(a.transport.CloseIdleConnections)
	return a
}

func TestStreams(t *testing.T) {
	a := newAgent(t)
	w := newWorld(t, func(c *Config) { c.Nodes = a })
	w.namespace("d")
	cs := w.clientset(w.http)
	ctx := t.Context()
	_, err := cs.CoreV1().ServiceAccounts("d").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p := podNamed("p")
	p.Spec.NodeName = "n1"
	_, err = cs.CoreV1().Pods("d").Create(ctx, p, metav1.CreateOptions{})
	require.NoError(t, err)
	two := podNamed("two")
	two.Spec.NodeName = "n1"
	two.Spec.Containers = append(two.Spec.Containers, corev1.Container{Name: "waiting", Image: "i"})
	_, err = cs.CoreV1().Pods("d").Create(ctx, two, metav1.CreateOptions{})
	require.NoError(t, err)
	const pods = "/api/v1/namespaces/d/pods/"

	t.Run("log", func(t *testing.T) {
		r := w.do(w.http, "GET", pods+"p/log?tailLines=3&timestamps=true", "")
		require.Equal(t, 200, r.code, "%s", r.body)
		require.Contains(t, string(r.body), "tailLines=3&timestamps=true")
		for path, text := range map[string]string{
			"two/log":                   "a container name must be specified for pod two, choose one of: [main waiting]",
			"p/log?container=x":         "container x is not valid for pod p",
			"two/log?container=waiting": `container "waiting" in pod "p" is waiting to start: ContainerCreating`,
		} {
			r := w.do(w.http, "GET", pods+path, "")
			require.Equal(t, 400, r.code, path)
			require.Contains(t, r.status(t).Message, text)
		}
		require.Equal(t, 422, w.do(w.http, "GET", pods+"p/log?tailLines=-3", "").code)
		require.Equal(t, 404, w.do(w.http, "GET", pods+"none/log", "").code)
		config, err := websocket.NewConfig("wss"+strings.TrimPrefix(w.url, "https")+pods+"p/log?tailLines=3",
			"https://localhost")
		require.NoError(t, err)
		config.Protocol = []string{"binary.k8s.io"}
		config.TlsConfig = w.http.Transport.(*http.Transport).TLSClientConfig.Clone()
		config.TlsConfig.NextProtos = nil
		ws, err := websocket.DialConfig(config)
		require.NoError(t, err)
		defer ws.Close()
		var message []byte
		for len(message) == 0 { // the first message is empty
			require.NoError(t, websocket.Message.Receive(ws, &message))
		}
		require.Contains(t, string(message), "tailLines=3")
		stream, err := cs.CoreV1().Pods("d").GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
		require.NoError(t, err)
		defer stream.Close()
		a.log <- "hello"
		buf := make([]byte, 1000)
		got := ""
		for !strings.Contains(got, "hello") {
			n, err := stream.Read(buf)
			require.NoError(t, err, got)
			got += string(buf[:n])
		}
		close(a.log)
	})

	cert := w.ca.issue(t, "admin", "system:masters")
	certPEM, keyPEM := pems(t, cert)
	cfg := &rest.Config{
		Host: w.url, TLSClientConfig: rest.TLSClientConfig{CAData: w.ca.pem(), CertData: certPEM, KeyData: keyPEM},
	}
	t.Run("exec", func(t *testing.T) {
		u, _ := url.Parse(w.url + pods + "p/exec?command=ls&command=-l&stdin=true&stdout=true")
		for name, make := range map[string]func() (clientremote.Executor, error){
			"SPDY": func() (clientremote.Executor, error) { return clientremote.NewSPDYExecutor(cfg, "POST", u) },
			"WebSocket": func() (clientremote.Executor, error) {
				return clientremote.NewWebSocketExecutor(cfg, "GET", u.String())
			},
		} {
			e, err := make()
			require.NoError(t, err)
			var out bytes.Buffer
			require.NoError(t,
				e.StreamWithContext(ctx, clientremote.StreamOptions{Stdin: strings.NewReader("typed"), Stdout: &out}), name)
			require.Equal(t, "p/main [ls -l] tty=false\ntyped", out.String(), name)
		}
		r := w.do(w.http, "POST", pods+"p/exec?command=ls&container=x&stdout=1", "")
		require.Equal(t, 400, r.code)
		require.Contains(t, r.status(t).Message, "container x is not valid for pod p")
		require.Equal(t, 400, w.do(w.http, "POST", pods+"p/exec?command=ls&stdout=1", "").code, "an upgrade is required")
	})
	t.Run("port-forward", func(t *testing.T) {
		rt, upgrader, err := spdy.RoundTripperFor(cfg)
		require.NoError(t, err)
		u, _ := url.Parse(w.url + pods + "p/portforward")
		tunnel, err := portforward.NewSPDYOverWebsocketDialer(u, cfg)
		require.NoError(t, err)
		for _, dialer := range []httpstream.Dialer{spdy.NewDialer(upgrader, &http.Client{Transport: rt}, "POST", u), tunnel} {
			stop, ready := make(chan struct{}), make(chan struct{})
			f, err := portforward.New(dialer, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- f.ForwardPorts() }()
			<-ready
			ports, err := f.GetPorts()
			require.NoError(t, err)
			got := dialAndRead(t, fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
			require.Equal(t, "port 80\n", got)
			close(stop)
			require.NoError(t, <-done)
		}
	})
	t.Run("proxy to a node", func(t *testing.T) {
		_, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		r := w.do(w.http, "GET", "/api/v1/nodes/n1/proxy/stats/summary?x=y", "")
		require.Equal(t, 200, r.code, "%s", r.body)
		require.Equal(t, `node /stats/summary ""`, string(r.body))
	})
	t.Run("proxy to nothing", func(t *testing.T) {
		r := w.do(w.http, "GET", pods+"p/proxy/", "")
		require.Equal(t, 400, r.code)
		require.Contains(t, r.status(t).Message, "address not allowed")
		require.Equal(t, 503, w.do(w.http, "GET", "/api/v1/namespaces/d/services/none/proxy/", "").code)
	})
}
