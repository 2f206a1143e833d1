package e2e

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const balanceManifest = `
apiVersion: v1
kind: Pod
metadata: {name: near, labels: {app: web}}
spec:
  nodeName: HERE
  containers: [{name: web, image: coracle/hello, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: closed}
spec: {type: LoadBalancer, loadBalancerIP: 198.51.100.70, loadBalancerSourceRanges: [203.0.113.0/24], selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: go}
spec: {ports: [{name: http, port: 80}, {name: h2c, port: 81, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: go, labels: {kubernetes.io/service-name: go}}
addressType: IPv4
ports: [{name: http, port: 9080}, {name: h2c, port: 9080}]
endpoints: [{addresses: [198.51.100.2], conditions: {ready: true}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  rules:
  - host: web.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}},
                   {path: /go, pathType: Prefix, backend: {service: {name: go, port: {name: http}}}}]}
  - host: "*.grpc.example.com"
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: go, port: {name: h2c}}}}]}
`

const ingressTLS = `
apiVersion: v1
kind: Secret
metadata: {name: cert}
type: kubernetes.io/tls
data: {tls.crt: CERT, tls.key: KEY}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: secure}
spec:
  tls: [{hosts: [web.example.com], secretName: cert}]
  rules: [{host: secure.example.com, http: {paths: [{path: /, pathType: Exact, backend: {service: {name: web, port: {number: 80}}}}]}}]
`

// lan inserts a switch between two directly connected machines, and returns the network namespace of a third
// machine at 198.51.100.4.
func lan(t *testing.T, h, other *host.Host) string {
	wire, client := h.Name+"s", h.Name+"c"
	for _, name := range []string{wire, client} {
		host.System(t, "ip", "netns", "add", name)
		t.Cleanup(func() { host.System(t, "ip", "netns", "del", name) })
	}
	for _, line := range []string{
		"-n " + other.Name + " link set eth0 netns " + wire + " name p1",
		"-n " + wire + " link add br0 type bridge", "-n " + wire + " link set br0 up",
		"-n " + wire + " link add p2 type veth peer name eth0 netns " + other.Name,
		"-n " + wire + " link add p3 type veth peer name eth0 netns " + client,
		"-n " + wire + " link set p1 master br0 up", "-n " + wire + " link set p2 master br0 up",
		"-n " + wire + " link set p3 master br0 up",
		"-n " + other.Name + " link set eth0 up", "-n " + other.Name + " addr add 198.51.100.3/24 dev eth0",
		"-n " + other.Name + " route add default via 198.51.100.1 dev eth0",
		"-n " + client + " link set lo up", "-n " + client + " link set eth0 up",
		"-n " + client + " addr add 198.51.100.4/24 dev eth0",
	} {
		host.System(t, "ip", strings.Fields(line)...)
	}
	return client
}

// TestLoadBalancerAndIngress checks services and Ingresses from another machine of the link. Load balancer
// addresses answer ARP, stay over a restart, and move away from a machine that dies. The Ingress proxy handles TLS,
// upgrades, HTTP/2, and changes under load.
func TestLoadBalancerAndIngress(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	client := lan(t, h, other)
	start := []string{"--load-balancer-pool=198.51.100.64/28", "--node-monitor-grace-period=20s"}
	h.Start(start...)
	curl := func(args ...string) (string, error) {
		out, err := exec.Command("ip",
			append([]string{"netns", "exec", client, "curl", "-fsS", "--max-time", "5"}, args...)...).CombinedOutput()
		return string(out), err
	}
	soon := func(t *testing.T, want string, args ...string) {
		t.Helper()
		var out string
		require.Eventually(t, func() bool {
			out, _ = curl(args...)
			return strings.Contains(out, want)
		}, host.Patience, 50*time.Millisecond, "curl %v, last answer %s", args, stringer(func() string { return out }))
	}
	backend(t, h)
	h.Apply(strings.ReplaceAll(balanceManifest, "HERE", h.Name))
	h.Ctl("wait pod/near --for=condition=Ready --timeout=120s")

	t.Run("other machines resolve a pool address by ARP", func(t *testing.T) {
		require.Equal(t, "198.51.100.65", h.Ctl("get svc web -o jsonpath={.status.loadBalancer.ingress[0].ip}"))
		soon(t, "near: hello", "http://198.51.100.65/")
		out, err := h.Curl("http://198.51.100.65/")
		require.NoError(t, err, "from the node itself: %s", out)
		out, err = curl("http://198.51.100.65:81/")
		require.ErrorContains(t, err, "exit status 7", "a port without a service is refused at once: %s", out)
		out, err = curl("--max-time", "1", "http://198.51.100.70/")
		require.ErrorContains(t, err, "exit status 28", "source ranges keep others out: %s", out)
	})
	web := []string{"--resolve", "web.example.com:80:198.51.100.2", "http://web.example.com/"}
	t.Run("requests are routed by host and path", func(t *testing.T) {
		soon(t, "near: hello", web...)
		h.Ctl("wait ingress/web --for=jsonpath={.status.loadBalancer.ingress[*].ip}=198.51.100.2 --timeout=120s")
		out, err := curl("-H", "X-Forwarded-For: 6.6.6.6", "--resolve", "web.example.com:80:198.51.100.2",
			"http://web.example.com/go/x")
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 /go/x web.example.com 198.51.100.4", out)
		_, err = curl("http://198.51.100.2/")
		require.ErrorContains(t, err, "exit status 22", "404 without a rule for the host")
	})
	t.Run("TLS certificate by server name follows its secret", func(t *testing.T) {
		for range 2 {
			cert, key := pairFor(t)
			h.Apply(strings.NewReplacer("CERT", base64.StdEncoding.EncodeToString(cert), "KEY",
				base64.StdEncoding.EncodeToString(key)).Replace(ingressTLS))
			roots := x509.NewCertPool()
			require.True(t, roots.AppendCertsFromPEM(cert))
			require.Eventually(t, func() bool {
				via := &http.Transport{
					DialContext:       from(other, "198.51.100.2:443"),
					TLSClientConfig:   &tls.Config{RootCAs: roots},
					ForceAttemptHTTP2: true,
				}
				defer via.CloseIdleConnections()
				r, err := (&http.Client{Transport: via}).Get("https://web.example.com/go")
				if err != nil {
					return false
				}
				defer r.Body.Close()
				b, _ := io.ReadAll(r.Body)
				return r.ProtoMajor == 2 && string(b) == "HTTP/1.1 /go web.example.com 198.51.100.3"
			}, host.Patience, 20*time.Millisecond)
		}
		_, err := curl("--resolve", "other.example.com:443:198.51.100.2", "https://other.example.com/")
		require.ErrorContains(t, err, "exit status 60", "other names have a self-signed certificate")
	})
	t.Run("upgraded connections", func(t *testing.T) {
		c, err := from(other, "198.51.100.2:80")(t.Context(), "tcp", "")
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c,
			"GET /go/upgrade HTTP/1.1\r\nHost: web.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(host.Patience)))
		b := bufio.NewReader(c)
		r, err := http.ReadResponse(b, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, r.StatusCode)
		_, err = io.WriteString(c, "hello\n")
		require.NoError(t, err)
		line, err := b.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "hello\n", line)
	})
	t.Run("bidirectional HTTP/2 without TLS", func(t *testing.T) {
		via := &http.Transport{DialContext: from(other, "198.51.100.2:80"), Protocols: new(http.Protocols)}
		via.Protocols.SetUnencryptedHTTP2(true)
		defer via.CloseIdleConnections()
		in, out := io.Pipe()
		r, err := http.NewRequest("POST", "http://a.grpc.example.com/echo", in)
		require.NoError(t, err)
		a, err := via.RoundTrip(r)
		require.NoError(t, err)
		defer a.Body.Close()
		b := bufio.NewReader(a.Body)
		for n := range 3 {
			fmt.Fprintln(out, n)
			line, err := b.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("HTTP/2.0 %d\n", n), line)
		}
		require.NoError(t, out.Close())
		_, err = io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "0", a.Trailer.Get("Grpc-Status"))
	})
	t.Run("changes under load drop no request", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		var done atomic.Int32
		for range 4 {
			asking.Go(func() {
				via := &http.Transport{DialContext: from(other, "198.51.100.2:80")}
				defer via.CloseIdleConnections()
				for ctx.Err() == nil {
					r, err := (&http.Client{Transport: via}).Get("http://web.example.com/go/load")
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					_ = r.Body.Close()
					if r.StatusCode != http.StatusOK {
						t.Error(r.Status)
						return
					}
					done.Add(1)
				}
			})
		}
		for n := range 5 {
			h.Ctl(fmt.Sprintf("create ingress more%d --rule=more%d.example.com/*=web:80", n, n))
			soon(t, "near: hello", "--resolve", fmt.Sprintf("more%d.example.com:80:198.51.100.2", n),
				fmt.Sprintf("http://more%d.example.com/", n))
		}
		h.Ctl("delete ingress more0 more1 more2 more3 more4 secure")
		cancel()
		asking.Wait()
		require.Greater(t, done.Load(), int32(50))
	})
	t.Run("addresses and routes after a kill", func(t *testing.T) {
		h.Kill()
		h.Run(append([]string{"start"}, start...)...)
		soon(t, "near: hello", "http://198.51.100.65/")
		soon(t, "near: hello", web...)
		require.Equal(t, "198.51.100.65", h.Ctl("get svc web -o jsonpath={.status.loadBalancer.ingress[0].ip}"))
	})
	t.Run("an address moves away from a dead machine", func(t *testing.T) {
		agent := startAgent(t, other, joinWords(t, h))
		h.Ctl("wait node/" + other.Name + " --for=condition=Ready --timeout=120s")
		other.Load()
		h.Ctl("label pod near app=later --overwrite")
		h.Apply(strings.NewReplacer("near", "far", "HERE", other.Name).Replace(balanceManifest[:strings.Index(balanceManifest,
			"---")]))
		h.Ctl("wait pod/far --for=condition=Ready --timeout=120s")
		mac := func(of string) string {
			return strings.TrimSpace(host.System(t, "ip", "netns", "exec", of, "cat", "/sys/class/net/eth0/address"))
		}
		holder := func() string {
			return host.System(t, "ip", "-n", client, "neigh", "show", "198.51.100.65")
		}
		soon(t, "far: hello", "http://198.51.100.65/")
		require.Eventually(t, func() bool {
			return strings.Contains(holder(), mac(other.Name))
		}, host.Patience, 20*time.Millisecond, "the node with the endpoint announces the address")
		other.Cut()
		require.NoError(t, agent.Process.Kill())
		h.Ctl("label pod near app=web --overwrite")
		soon(t, "near: hello", "http://198.51.100.65/")
		require.Contains(t, holder(), mac(h.Name))
	})
	t.Run("deleting services and Ingresses leaves nothing behind", func(t *testing.T) {
		h.Ctl("delete ingress web")
		h.Ctl("delete svc web closed --timeout=120s")
		require.Eventually(t, func() bool {
			_, err := curl("http://198.51.100.2/")
			return err != nil && strings.Contains(err.Error(), "exit status 7")
		}, host.Patience, 20*time.Millisecond, "the connection is refused")
		require.Eventually(t, func() bool {
			out, err := curl("--max-time", "1", "http://198.51.100.65/")
			return err != nil && !strings.Contains(out, "hello")
		}, host.Patience, 20*time.Millisecond)
	})
}

// from returns a dialer that dials an address from a machine, whatever the URL's host is.
func from(h *host.Host, address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		return c, h.InNetwork(func() error {
			c, err = (&net.Dialer{Timeout: host.Patience}).DialContext(ctx, "tcp4", address)
			return err
		})
	}
}

// backend serves on port 9080 of a machine: HTTP/1.1 with upgrades, and HTTP/2.
func backend(t *testing.T, h *host.Host) {
	var l net.Listener
	require.NoError(t, h.InNetwork(func() (err error) {
		l, err = net.Listen("tcp4", "198.51.100.2:9080")
		return err
	}))
	s := &http.Server{
		Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/go/upgrade":
				c, b, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				_, _ = io.Copy(c, b) // the buffered bytes, then the rest
			case "/echo":
				w.Header().Set("Trailer", "Grpc-Status")
				_ = http.NewResponseController(w).Flush()
				for b := bufio.NewScanner(r.Body); b.Scan(); {
					fmt.Fprintf(w, "%s %s\n", r.Proto, b.Text())
					_ = http.NewResponseController(w).Flush()
				}
				w.Header().Set("Grpc-Status", "0")
			default:
				fmt.Fprintf(w, "%s %s %s %s", r.Proto, r.URL.Path, r.Host, r.Header.Get("X-Forwarded-For"))
			}
		}),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { _ = s.Close(); done.Wait() })
}

// pairFor returns a self-signed certificate of web.example.com and its key, in PEM.
func pairFor(t *testing.T) (cert, key []byte) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"web.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	require.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{
		Type: "PRIVATE KEY", Bytes: encoded,
	})
}

// stringer evaluates the function only when it is printed.
type stringer func() string

func (s stringer) String() string { return s() }
