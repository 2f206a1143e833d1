package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// reviewing answers reviews: each user may use the listed subresources of nodes, and its token is its name.
type reviewing struct{ *cluster }

func (r reviewing) Create(ctx context.Context, obj ctrl.Object, opts ...ctrl.CreateOption) error {
	switch review := obj.(type) {
	case *authzv1.SubjectAccessReview:
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = a.Resource == "nodes" && a.Name == "node" && slices.Contains(map[string][]string{
			"reader":  {"get proxy", "get log", "get stats"},
			"watcher": {"get pods", "get metrics"},
			"runner":  {"create proxy"},
		}[review.Spec.User], a.Verb+" "+a.Subresource)
		return nil
	case *authnv1.TokenReview:
		if review.Spec.Token == "unavailable" {
			return apierrors.NewServiceUnavailable("no server")
		}
		if review.Status.Authenticated = review.Spec.Token != "unknown"; review.Status.Authenticated {
			review.Status.User.Username = review.Spec.Token
		}
		return nil
	}
	return r.cluster.Create(ctx, obj, opts...)
}

// stored is a runtime whose images are in a directory that exists.
type stored struct {
	*fake.Runtime
	dir string
}

func (s stored) ImageDir() string { return s.dir }

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func issue(t *testing.T, name string, by *authority) (*authority, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true,
		IsCA:        by == nil,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, signer := tmpl, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert, key}, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestNodeAPI(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	ca, _ := issue(t, "ca", nil)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	_, serving := issue(t, "node", ca)
	c := newCluster(ctx)
	rt := fake.New(fake.Config{Programs: map[string]fake.Program{"yes": func(ctx context.Context, p *fake.Process) int {
		for line := bytes.Repeat([]byte("y\n"), 16<<10); ctx.Err() == nil; {
			_, _ = p.Out.Write(line)
		}
		return 137
	}}})
	a, err := New(Config{
		Environment: pod.Environment{
			Client:   reviewing{c},
			Runtime:  stored{rt, dir},
			NodeName: "node",
			Network:  &fakeNetwork{sandboxes: map[string]network.Sandbox{}},
			DataDir:  filepath.Join(dir, "data"),
			RunDir:   filepath.Join(dir, "run"),
			LogDir:   filepath.Join(dir, "log"),
			Recorder: &eventList{},
		},
		NodeIP:         netip.MustParseAddr("127.0.0.1"),
		ListenAddress:  "127.0.0.1:0",
		ClientCAs:      func() *x509.CertPool { return pool },
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil },
	})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	select {
	case <-a.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	n := &corev1.Node{}
	require.NoError(t, c.Get(ctx, ctrl.ObjectKey{Name: "node"}, n))
	address := fmt.Sprint("127.0.0.1:", n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	p := simple("web", "sh", "-c", "echo out; echo err >&2; cat")
	p.Namespace, p.UID, p.Spec.NodeName = "default", "uid", "node"
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Containers[0].Image, p.Spec.Containers[0].Stdin = "busybox", true
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{},
	}}}
	require.NoError(t, c.Create(ctx, p))
	require.Eventually(t, func() bool {
		got, ok := a.pods.Find("default", "web", "")
		return ok && got.Status.Phase == corev1.PodRunning
	}, time.Minute, time.Millisecond)

	rt.Use(mustList(t, rt)[0], func(s *fake.Used) {
		s.Disk = 5 << 20
		s.Swap, s.SwapLimit = 3<<20, new(uint64(4<<20))
		s.Periods, s.ThrottledPeriods, s.Throttled = 10, 4, 1500*time.Millisecond
		s.Pressure = &runtime.Pressure{Memory: runtime.Stalls{Some: runtime.Stall{Avg10: 7, Total: 2 * time.Second}}}
	})

	as := func(name string) *http.Client {
		cfg := &tls.Config{RootCAs: pool}
		if name != "" {
			_, cert := issue(t, name, ca)
			cfg.Certificates = []tls.Certificate{cert}
		}
		return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	}
	const server = "kube-apiserver-kubelet-client"
	call := func(method, who, path string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, method, "https://"+address+path, nil)
		require.NoError(t, err)
		token, bearer := strings.CutPrefix(who, "token ")
		if bearer {
			req.Header.Set("Authorization", "Bearer "+token)
			who = ""
		}
		res, err := as(who).Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(b)
	}
	for _, tt := range []struct {
		method, who, path string
		code              int
		body              string
	}{
		{"GET", "", "/healthz", 401, "Unauthorized"},
		{"GET", "stranger", "/healthz", 403, "subresource(s)=[healthz proxy]"},
		{"GET", "reader", "/healthz", 200, "ok"},
		{"GET", "stranger", "/runningpods/", 403, "subresource(s)=[pods proxy]"},
		{"GET", "reader", "/runningpods/", 200, `"containers":[{"name":"main","image":"busybox"`},
		{"GET", "stranger", "/configz", 403, "subresource(s)=[configz proxy]"},
		{"GET", "reader", "/configz", 200, `{"kubeletconfig":{`},
		{"GET", "", "/pods", 401, "Unauthorized"},
		{"GET", "stranger", "/pods", 403, "Forbidden"},
		{"GET", "reader", "/pods", 200, `"name":"web"`},
		{"GET", "watcher", "/pods", 200, `"name":"web"`},
		{"GET", "watcher", "/metrics", 200, "kubelet_running_pods 1"},
		{"GET", "watcher", "/stats/summary", 403, "subresource(s)=[stats]"},
		{"GET", "watcher", "/containerLogs/default/web/main", 403, "Forbidden"},
		{"GET", "reader", "/exec/default/web/main?command=id&output=1", 403, "verb=create"},
		{"GET", "reader", "/attach/default/web/main?output=1", 403, "verb=create"},
		{"GET", "reader", "/portForward/default/web", 403, "verb=create"},
		{"POST", "runner", "/run/default/web/main?cmd=echo&cmd=hi", 200, "hi\n"},
		{"GET", "token reader", "/pods", 200, `"name":"web"`},
		{"GET", "token stranger", "/pods", 403, "user=stranger"},
		{"GET", "token unknown", "/pods", 401, "Unauthorized"},
		{"GET", "token unavailable", "/pods", 503, "could not authenticate"},
		{"GET", "token ", "/pods", 401, "Unauthorized"},
		{"POST", "reader", "/run/default/web/main?cmd=true", 403, "Forbidden"},
		{"POST", server, "/run/default/web/main?cmd=echo&cmd=hi", 200, "hi\n"},
		{"POST", server, "/run/default/web/main?cmd=yes", 507, "printed more than 1048576 bytes and was stopped"},
		{"GET", server, "/containerLogs/default/web/main", 200, "out\nerr\n"},
		{"GET", server, "/containerLogs/default/web/main?stream=Stderr", 200, "err\n"},
		{"GET", server, "/containerLogs/default/web/main?tailLines=x", 400, "tailLines"},
		{"GET", server, "/containerLogs/default/web/main?previous=true", 400, "previous terminated container"},
		{"GET", server, "/containerLogs/default/web/other", 400, `"other" not found`},
		{"GET", server, "/containerLogs/default/none/main", 404, "does not exist"},
		{"GET", server, "/stats/summary", 200, `"nodeName":"node"`},
		{"GET", server, "/stats/summary", 200, `"capacityBytes":`},
		{"GET", server, "/stats/summary", 200, `"rlimit":{"time":`},
		{"GET", server, "/metrics/resource", 200, `container_memory_working_set_bytes{container="main"`},
		{"GET", server, "/metrics/resource", 200, `pod_memory_working_set_bytes{namespace="default",pod="web"}`},
		{"GET", server, "/metrics/resource", 200, "\nnode_cpu_usage_seconds_total "},
		{"GET", server, "/metrics/resource", 200, "\nresource_scrape_error 0"},
		{"GET", server, "/metrics/resource", 200, `pod_swap_usage_bytes{namespace="default",pod="web"} 3.145728e+06`},
		{"GET", server, "/metrics/resource", 200, `container_swap_limit_bytes{container="main"`},
		{"GET", server, "/metrics/cadvisor", 200, `container_cpu_cfs_throttled_periods_total{container="main",id="`},
		{"GET", server, "/metrics/cadvisor", 200, `container_pressure_memory_waiting_seconds_total{container="main",id="`},
		{"GET", server, "/metrics/cadvisor", 200, `container_memory_rss{container="main",id="`},
		{"GET", server, "/metrics/cadvisor", 200, `container_fs_usage_bytes{container="main",id="`},
		{"GET", server, "/metrics/cadvisor", 200,
			`container_network_receive_bytes_total{interface="eth0",namespace="default",pod="web"} 3`},
		{"GET", server, "/metrics/probes", 200, "# TYPE prober_probe_total counter"},
	} {
		t.Run(tt.method+" "+tt.path+" by "+tt.who, func(t *testing.T) {
			code, body := call(tt.method, tt.who, tt.path)
			require.Equal(t, tt.code, code, body)
			require.Contains(t, body, tt.body)
		})
	}

	checkSummary(t, func() string { _, body := call("GET", server, "/stats/summary"); return body })

	_, cert := issue(t, server, ca)
	restConfig := &rest.Config{Host: address, Transport: nil}
	restConfig.TLSClientConfig = rest.TLSClientConfig{
		CAData:   pemCert(ca.cert.Raw),
		CertData: pemCert(cert.Certificate[0]),
		KeyData:  pemKey(t, cert),
	}
	exec := func(in string, command ...string) (string, error) {
		q := url.Values{"command": command, "output": {"1"}, "error": {"1"}}
		if in != "" {
			q.Set("input", "1")
		}
		e, err := remotecommand.NewSPDYExecutor(restConfig, "POST", &url.URL{
			Scheme:   "https",
			Host:     address,
			Path:     "/exec/default/web/main",
			RawQuery: q.Encode(),
		})
		require.NoError(t, err)
		var out, stderr bytes.Buffer
		o := remotecommand.StreamOptions{Stdout: &out, Stderr: &stderr}
		if in != "" {
			o.Stdin = strings.NewReader(in)
		}
		err = e.StreamWithContext(ctx, o)
		return out.String() + stderr.String(), err
	}
	out, err := exec("", "sh", "-c", "echo a; echo b >&2; exit 7")
	var code utilexec.CodeExitError
	require.ErrorAs(t, err, &code)
	require.Equal(t, 7, code.Code)
	require.Equal(t, "a\nb\n", out)
	out, err = exec("through", "cat")
	require.NoError(t, err)
	require.Equal(t, "through", out)

	// Attach connects to the running process: cat echoes.
	executor, err := remotecommand.NewSPDYExecutor(restConfig, "POST", &url.URL{
		Scheme:   "https",
		Host:     address,
		Path:     "/attach/default/web/main",
		RawQuery: "input=1&output=1",
	})
	require.NoError(t, err)
	attached, detach := context.WithCancel(ctx)
	typed, typing := io.Pipe()
	echoed, echo := io.Pipe()
	attachEnded := make(chan error, 1)
	go func() {
		attachEnded <- executor.StreamWithContext(attached, remotecommand.StreamOptions{Stdin: typed, Stdout: echo})
	}()
	_, err = io.WriteString(typing, "ping\n")
	require.NoError(t, err)
	pong := make([]byte, len("ping\n"))
	_, err = io.ReadFull(echoed, pong)
	require.NoError(t, err)
	require.Equal(t, "ping\n", string(pong))
	detach()
	require.ErrorIs(t, <-attachEnded, context.Canceled)
	_, _ = typing.Close(), echoed.Close()

	// Port-forward connects to a port on the pod's loopback, and its error names a port without a listener.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	forward := func(port int) (string, string) {
		transport, upgrader, err := spdy.RoundTripperFor(restConfig)
		require.NoError(t, err)
		conn, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST",
			&url.URL{Scheme: "https", Host: address, Path: "/portForward/default/web"}).
			Dial("portforward.k8s.io")
		require.NoError(t, err)
		defer conn.Close()
		h := http.Header{corev1.PortHeader: {fmt.Sprint(port)}, corev1.PortForwardRequestIDHeader: {"0"}}
		h.Set(corev1.StreamType, corev1.StreamTypeError)
		errs, err := conn.CreateStream(h)
		require.NoError(t, err)
		require.NoError(t, errs.Close())
		h.Set(corev1.StreamType, corev1.StreamTypeData)
		data, err := conn.CreateStream(h)
		require.NoError(t, err)
		_, err = io.WriteString(data, "through the port")
		require.NoError(t, err)
		require.NoError(t, data.Close())
		message, err := io.ReadAll(errs)
		require.NoError(t, err)
		got, _ := io.ReadAll(data)
		return string(got), string(message)
	}
	got, message := forward(l.Addr().(*net.TCPAddr).Port)
	require.Empty(t, message)
	require.Equal(t, "through the port", got)
	require.NoError(t, l.Close())
	_, message = forward(l.Addr().(*net.TCPAddr).Port)
	require.Contains(t, message, "connection refused")

	// Following a log ends with its container.
	req, err := http.NewRequestWithContext(ctx, "GET", "https://"+address+"/containerLogs/default/web/main?follow=true",
		nil)
	require.NoError(t, err)
	res, err := as(server).Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	all := make([]byte, len("out\nerr\nping\n"))
	_, err = io.ReadFull(res.Body, all)
	require.NoError(t, err)
	require.Equal(t, "out\nerr\nping\n", string(all))
	require.NoError(t, rt.Signal(ctx, mustList(t, rt)[0], syscall.SIGTERM, false))
	more, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Empty(t, more)

	cancel()
	require.NoError(t, <-done)
	c.running.Wait()
	for _, con := range mustList(t, rt) {
		require.NoError(t, rt.Remove(context.Background(), con))
	}
	require.NoError(t, Reset(dir))
	http.DefaultClient.CloseIdleConnections()
}

func pemCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func pemKey(t *testing.T, c tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func mustList(t *testing.T, rt *fake.Runtime) []string {
	t.Helper()
	all, err := rt.List(context.Background())
	require.NoError(t, err)
	var ids []string
	for _, c := range all {
		ids = append(ids, c.ID)
	}
	return ids
}

// checkSummary checks the figures of the network and the disks in the summary of a node with one pod.
func checkSummary(t *testing.T, get func() string) {
	var sum stats.Summary
	require.NoError(t, json.Unmarshal([]byte(get()), &sum))
	n, p := sum.Node, sum.Pods[0]
	require.Equal(t, "lan", n.Network.Name)
	require.EqualValues(t, 5, *n.Network.RxBytes)
	require.Positive(t, *n.Memory.AvailableBytes)
	require.False(t, n.StartTime.IsZero())
	if waits, err := os.ReadFile("/proc/pressure/cpu"); err == nil && len(waits) > 0 { // the kernel measures it
		require.Positive(t, n.CPU.PSI.Some.Total)
		require.NotNil(t, n.Memory.PSI)
		require.NotNil(t, n.IO.PSI)
	}
	if swaps, err := os.ReadFile("/proc/swaps"); err == nil && strings.Count(string(swaps), "\n") < 2 {
		require.Nil(t, n.Swap, "the machine has no swap")
	}
	require.Equal(t, "eth0", p.Network.Name)
	require.EqualValues(t, 3, *p.Network.RxBytes)
	require.EqualValues(t, 4, *p.Network.TxErrors)
	require.Len(t, p.Network.Interfaces, 1)
	require.EqualValues(t, 7, p.Memory.PSI.Some.Avg10)
	require.EqualValues(t, 2*time.Second, p.Memory.PSI.Some.Total)
	require.EqualValues(t, 1, *p.ProcessStats.ProcessCount)
	require.EqualValues(t, 3<<20, *p.Swap.SwapUsageBytes)
	require.EqualValues(t, 1<<20, *p.Containers[0].Swap.SwapAvailableBytes)
	require.Equal(t, stats.PSIData{Total: 2e9, Avg10: 7}, p.Containers[0].Memory.PSI.Some)
	require.NotNil(t, p.Containers[0].IO.PSI)
	require.EqualValues(t, 5<<20, *n.Runtime.ContainerFs.UsedBytes)
	require.Positive(t, *n.Runtime.ImageFs.UsedBytes)
	require.EqualValues(t, 5<<20, *p.Containers[0].Rootfs.UsedBytes)
	require.Positive(t, *p.Containers[0].Logs.UsedBytes)
	require.Equal(t, "scratch", p.VolumeStats[0].Name)
	require.Positive(t, *p.VolumeStats[0].InodesUsed)
	require.GreaterOrEqual(t, *p.EphemeralStorage.UsedBytes, *p.Containers[0].Logs.UsedBytes+5<<20)
	require.Equal(t, *n.Fs.CapacityBytes, *p.EphemeralStorage.CapacityBytes)
}
