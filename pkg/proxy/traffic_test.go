package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/agent/network"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

// world is a node (the namespace of the tests), pods on it, and a client outside.
type world struct {
	t       testing.TB
	net     *network.Net
	outside int // a file of the outside's network namespace
	objects *fakeCache
	proxy   *Proxy
	change  func(*Proxy) // of the proxy before it runs
	pods    map[string]netip.Addr
	cancel  context.CancelFunc
	ended   chan error
}

var (
	nodeAddr    = netip.MustParseAddr("192.168.77.1")
	serviceCIDR = netip.MustParsePrefix("10.43.0.0/16")
	clusterCIDR = netip.MustParsePrefix("10.42.0.0/16")
)

var mounts = sync.OnceValue(func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") })

func newWorld(t testing.TB) *world {
	require.NoError(t, mounts())
	// The kernel tells one peer only so often that it is refused; the tests ask more often.
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0))
	// The pods of every test have the same addresses; connections of the last test's must not be taken for theirs.
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	w := &world{t: t, pods: map[string]netip.Addr{}, objects: &fakeCache{}}
	ns := make(chan int)
	go func() {
		runtime.LockOSThread()
		host, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(err)
		must(unix.Unshare(unix.CLONE_NEWNET))
		h, err := netlink.NewHandle()
		must(err)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "out0"
		v := netlink.NewVeth(attrs)
		v.PeerName, v.PeerNamespace = "up0", netlink.NsFd(host)
		must(h.LinkAdd(v))
		out, err := h.LinkByName("out0")
		must(err)
		must(h.LinkSetUp(out))
		must(h.AddrAdd(out, &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{192, 168, 77, 9}, Mask: net.CIDRMask(24, 32)}}))
		for _, dst := range []string{"198.51.100.0/24", "10.43.0.0/16", "10.42.0.0/16"} {
			_, n, _ := net.ParseCIDR(dst)
			must(h.RouteAdd(&netlink.Route{Dst: n, Gw: nodeAddr.AsSlice(), LinkIndex: out.Attrs().Index}))
		}
		h.Close()
		must(unix.Close(host))
		fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(err)
		ns <- fd
	}()
	w.outside = <-ns
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	up, err := netlink.LinkByName("up0")
	require.NoError(t, err)
	require.NoError(t, errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(up),
		netlink.AddrAdd(up, &netlink.Addr{IPNet: &net.IPNet{IP: nodeAddr.AsSlice(), Mask: net.CIDRMask(24, 32)}}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: net.IP{192, 168, 77, 9}})))
	// The end that was set up first can send once the kernel was asked about it.
	require.NoError(t, w.in("outside", func() error {
		h, err := netlink.NewHandle()
		must(err)
		defer h.Close()
		_, err = h.LinkByName("out0")
		return err
	}))
	w.net, err = network.New(network.Config{RunDir: filepath.Join(t.TempDir(), "net"), NodeIP: nodeAddr,
		PodCIDR: netip.MustParsePrefix("10.42.0.0/24"), ServiceCIDR: serviceCIDR})
	require.NoError(t, err)
	t.Cleanup(func() {
		w.stop()
		require.NoError(t, Reset(context.Background(), Config{}))
		require.NoError(t, w.net.Reset(context.Background()))
		require.NoError(t, netlink.LinkDel(up))
		_ = unix.Close(w.outside)
	})
	return w
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *world) start() {
	p, err := New(Config{Client: fakeClient{cache: w.objects}, NodeName: "n1", NodeIP: nodeAddr, ServiceCIDR: serviceCIDR, ClusterCIDR: clusterCIDR,
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil))})
	require.NoError(w.t, err)
	if w.change != nil {
		w.change(p)
	}
	w.proxy = p
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ended = cancel, make(chan error, 1)
	go func() { w.ended <- p.Run(ctx) }()
	select {
	case <-p.Ready():
	case err := <-w.ended:
		w.t.Fatal(err)
	case <-time.After(patience):
		w.t.Fatal("not ready")
	}
}

func (w *world) stop() {
	if w.cancel != nil {
		w.cancel()
		require.NoError(w.t, <-w.ended)
		w.cancel = nil
	}
}

// settle returns once everything told before has reached the kernel.
func (w *world) settle() {
	require.Eventually(w.t, func() bool {
		w.proxy.mu.Lock()
		defer w.proxy.mu.Unlock()
		return w.proxy.done == w.proxy.received
	}, patience, time.Millisecond)
}

// pod makes a pod whose server on port 8080, TCP and UDP, answers with the pod's name and the client's address.
func (w *world) pod(name string) netip.Addr {
	s, err := w.net.Setup(context.Background(), network.Pod{UID: name, Name: name})
	require.NoError(w.t, err)
	w.pods[name] = s.IP
	var l net.Listener
	var u net.PacketConn
	require.NoError(w.t, w.net.Enter(context.Background(), name, func() (err error) {
		l, err = net.Listen("tcp4", ":8080")
		if err != nil {
			return err
		}
		u, err = net.ListenPacket("udp4", ":8080")
		return err
	}))
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, name+" "+host)
			_ = c.Close()
		}
	})
	done.Go(func() {
		var b [64]byte
		for {
			_, from, err := u.ReadFrom(b[:])
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = u.WriteTo([]byte(name+" "+host), from)
		}
	})
	w.t.Cleanup(func() { _ = l.Close(); _ = u.Close(); done.Wait() })
	return s.IP
}

// in runs f in a pod, on the node ("") or outside ("outside").
func (w *world) in(where string, f func() error) error {
	switch where {
	case "":
		return f()
	case "outside":
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			must(unix.Setns(w.outside, unix.CLONE_NEWNET))
			done <- f()
		}()
		return <-done
	}
	return w.net.Enter(context.Background(), where, f)
}

// patience bounds what should come at once; soon is enough to see that nothing comes.
const patience, soon = time.Minute, 300 * time.Millisecond

func (w *world) ask(where, proto, to string) (answer string, err error) {
	return w.askWithin(patience, where, proto, to)
}

func (w *world) askWithin(limit time.Duration, where, proto, to string) (answer string, err error) {
	err = w.in(where, func() error {
		began := time.Now()
		c, err := (&net.Dialer{Timeout: limit}).Dial(proto+"4", to)
		if err != nil {
			return err
		}
		took := time.Since(began)
		if proto == "udp" {
			// It keeps its port until the end: two questions from one port are one connection to the kernel.
			w.t.Cleanup(func() { _ = c.Close() })
			answer, err = exchange(c)
			return err
		}
		defer func() { _ = c.Close() }()
		data, err := io.ReadAll(c)
		answer = string(data)
		if err == nil && took >= firstRepeat && repeated(c.(*net.TCPConn)) {
			err = errRepeated
		}
		return err
	})
	return answer, err
}

// firstRepeat is when the kernel sends again what was lost. It also does, at once, where the port's last connection is
// not forgotten yet: that is no loss.
const firstRepeat = time.Second

var errRepeated = errors.New("a packet was lost, and sent again")

// repeated tells whether the kernel had to send something again.
func repeated(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	must(err)
	var info *unix.TCPInfo
	var asked error
	must(raw.Control(func(fd uintptr) { info, asked = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	must(asked)
	return info.Total_retrans > 0
}

func exchange(c net.Conn) (string, error) {
	var b [64]byte
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	n, err := c.Read(b[:])
	return string(b[:n]), err
}

func TestTraffic(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	client := w.pod("client")
	web := service("web", "10.43.0.10", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.ExternalIPs = []string{"198.51.100.1"}
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP})
	})
	endpoints := slice("web", 8080, a.String()+"@n1", b.String()+"@n1", c.String()+"@n1")
	udp, name := corev1.ProtocolUDP, "udp"
	endpoints.Ports = append(endpoints.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &udp, Port: endpoints.Ports[0].Port})
	w.objects.deliver(nil, web)
	w.objects.deliver(nil, endpoints)
	w.objects.deliver(nil, service("empty", "10.43.0.11"))
	w.start()

	inTurn := func(where, proto, to string, seen netip.Addr) {
		t.Helper()
		got := map[string]int{}
		for range 9 {
			answer, err := w.ask(where, proto, to)
			require.NoError(t, err, "%s -> %s", where, to)
			pod, from, _ := strings.Cut(answer, " ")
			got[pod]++
			require.Equal(t, seen.String(), from, "%s -> %s", where, to)
		}
		require.Equal(t, map[string]int{"a": 3, "b": 3, "c": 3}, got, "%s -> %s: in turn", where, to)
	}
	outside := netip.MustParseAddr("192.168.77.9")
	inTurn("client", "tcp", "10.43.0.10:80", client)
	inTurn("client", "udp", "10.43.0.10:53", client)
	inTurn("", "tcp", "10.43.0.10:80", nodeAddr)
	inTurn("", "udp", "10.43.0.10:53", nodeAddr)
	inTurn("outside", "tcp", "10.43.0.10:80", nodeAddr)
	inTurn("", "tcp", nodeAddr.String()+":30080", nodeAddr)
	inTurn("", "tcp", "127.0.0.1:30080", nodeAddr)
	inTurn("client", "tcp", nodeAddr.String()+":30080", nodeAddr)
	inTurn("outside", "tcp", nodeAddr.String()+":30080", nodeAddr)
	inTurn("outside", "tcp", "198.51.100.1:80", nodeAddr)
	inTurn("client", "tcp", "198.51.100.1:80", nodeAddr)
	_ = outside

	for range 6 { // an endpoint that reaches itself sees the node, one that reaches another is seen by its address
		answer, err := w.ask("a", "tcp", "10.43.0.10:80")
		require.NoError(t, err)
		require.Contains(t, []string{"a " + nodeAddr.String(), "b " + a.String(), "c " + a.String()}, answer)
	}
	for _, where := range []string{"", "client", "outside"} {
		for _, to := range []string{"10.43.0.11:80", "10.43.0.10:81", "10.43.99.99:80"} {
			_, err := w.ask(where, "tcp", to)
			require.ErrorIs(t, err, unix.ECONNREFUSED, "%s -> %s", where, to)
			_, err = w.ask(where, "udp", to)
			if where == "" { // the kernel refuses to send at all
				require.ErrorIs(t, err, unix.EPERM, "%s -> %s", where, to)
			} else {
				require.ErrorIs(t, err, unix.ECONNREFUSED, "%s -> %s", where, to)
			}
		}
	}

	// Another process takes over without a gap: connections go on being made all the while.
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := w.ask("", "tcp", "10.43.0.10:80"); err != nil {
				t.Error("during the restart:", err)
				return
			}
		}
	})
	for range 5 {
		w.stop()
		w.start()
	}
	close(stop)
	asking.Wait()

	// Endpoints go and come.
	w.objects.deliver(endpoints, slice("web", 8080, b.String()+"@n1"))
	w.settle()
	for range 4 {
		answer, err := w.ask("client", "tcp", "10.43.0.10:80")
		require.NoError(t, err)
		require.Equal(t, "b "+client.String(), answer)
	}
	w.objects.deliver(web, nil)
	w.settle()
	_, err := w.ask("outside", "tcp", nodeAddr.String()+":30080")
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

func TestUDPForgets(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.pod("client")
	udp := corev1.ProtocolUDP
	svc := service("dns", "10.43.0.10", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = udp })
	at := func(to netip.Addr) *discoveryv1.EndpointSlice {
		s := slice("dns", 8080, to.String()+"@n1")
		s.Ports[0].Protocol = &udp
		return s
	}
	w.objects.deliver(nil, svc)
	w.objects.deliver(nil, at(a))
	w.start()
	var c net.Conn
	require.NoError(t, w.in("client", func() (err error) { c, err = net.Dial("udp4", "10.43.0.10:80"); return err }))
	defer func() { _ = c.Close() }()
	answer, err := exchange(c)
	require.NoError(t, err)
	require.Contains(t, answer, "a ")
	w.objects.deliver(at(a), at(b))
	w.settle()
	answer, err = exchange(c) // the same socket
	require.NoError(t, err)
	require.Contains(t, answer, "b ")
}

func TestAffinity(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	w.pod("client")
	w.pod("other")
	w.objects.deliver(nil, service("web", "10.43.0.10", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	all := []string{a.String() + "@n1", b.String() + "@n1", c.String() + "@n1"}
	w.objects.deliver(nil, slice("web", 8080, all...))
	w.start()
	sticky := func(where string) string {
		t.Helper()
		first, err := w.ask(where, "tcp", "10.43.0.10:80")
		require.NoError(t, err)
		for range 6 {
			answer, err := w.ask(where, "tcp", "10.43.0.10:80")
			require.NoError(t, err)
			require.Equal(t, first, answer)
		}
		pod, _, _ := strings.Cut(first, " ")
		return pod
	}
	first := sticky("client")
	require.NotEqual(t, first, sticky("other"), "clients are spread")
	// The endpoint goes: the client gets another one, and stays there even when the first comes back.
	index := slices.Index([]string{"a", "b", "c"}, first)
	w.objects.deliver(slice("web", 8080, all...), slice("web", 8080, slices.Delete(slices.Clone(all), index, index+1)...))
	w.settle()
	second := sticky("client")
	require.NotEqual(t, first, second)
	w.objects.deliver(nil, slice("web", 8080, all...))
	w.settle()
	require.Equal(t, second, sticky("client"))
}

func TestLocalPolicy(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a")
	client := w.pod("client")
	free, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	healthPort := free.Addr().(*net.TCPAddr).Port
	require.NoError(t, free.Close())
	svc := service("web", "10.43.0.10", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = int32(healthPort)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	})
	w.objects.deliver(nil, svc)
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
	w.start()
	for where, seen := range map[string]string{"outside": "192.168.77.9", "client": client.String(), "": nodeAddr.String()} {
		for _, to := range []string{nodeAddr.String() + ":30080", "198.51.100.1:80"} {
			answer, err := w.ask(where, "tcp", to)
			require.NoError(t, err, "%s -> %s", where, to)
			require.Equal(t, "a "+seen, answer, "the client's address is kept")
		}
	}
	answer, err := w.ask("", "tcp", "127.0.0.1:30080")
	require.NoError(t, err)
	require.Equal(t, "a "+nodeAddr.String(), answer)
	check := func(status int) {
		t.Helper()
		r, err := http.Get("http://127.0.0.1:" + strconv.Itoa(healthPort))
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, status, r.StatusCode)
	}
	check(200)
	// The same pod, as if on another node: outsiders are not served here, those inside are.
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n2"))
	w.settle()
	_, err = w.askWithin(soon, "outside", "tcp", nodeAddr.String()+":30080")
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	for _, where := range []string{"client", ""} {
		_, err = w.ask(where, "tcp", nodeAddr.String()+":30080")
		require.NoError(t, err)
	}
	check(503)
	http.DefaultClient.CloseIdleConnections()
}

// TestRepair: if someone takes our table away, the next change brings all of it back.
func TestRepair(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a")
	w.objects.deliver(nil, service("web", "10.43.0.10"))
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
	w.start()
	k, err := newKernel(&w.proxy.Config)
	require.NoError(t, err)
	require.NoError(t, errors.Join(k.reset(), k.close()))
	_, err = w.askWithin(soon, "", "tcp", "10.43.0.10:80")
	require.Error(t, err)
	w.objects.deliver(nil, service("other", "10.43.0.11"))
	require.Eventually(t, func() bool { _, err := w.askWithin(soon, "", "tcp", "10.43.0.10:80"); return err == nil }, patience, 10*time.Millisecond)
}

func TestReset(t *testing.T) {
	w := newWorld(t)
	rules := func() string {
		out, err := exec.Command("sh", "-c", "nft list tables; ip route show table all | grep -v fe80").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	before := rules()
	w.objects.deliver(nil, service("web", "10.43.0.10"))
	w.start()
	running := rules()
	require.NotEqual(t, before, running)
	w.stop()
	require.Equal(t, running, rules(), "stopping leaves services working")
	require.NoError(t, Reset(context.Background(), Config{Prefix: "another"}))
	require.Equal(t, running, rules(), "another installation's reset is not ours")
	require.NoError(t, w.proxy.Reset(context.Background()))
	require.Equal(t, before, rules())
	require.NoError(t, w.proxy.Reset(context.Background()), "may be repeated")
}

// fakeCache tells handlers of objects, as informers do.
type fakeCache struct {
	ctrlcache.Cache
	mu       sync.Mutex
	handlers map[string][]toolscache.ResourceEventHandler
	objects  map[string]ctrl.Object
	events   []*corev1.Event // that were written
}

type fakeClient struct {
	client.Interface
	cache *fakeCache
}

func (c fakeClient) Cache() ctrlcache.Cache   { return c.cache }
func (c fakeClient) Scheme() *kruntime.Scheme { return scheme.Scheme }

func (c fakeClient) Create(_ context.Context, o ctrl.Object, _ ...ctrl.CreateOption) error {
	c.cache.mu.Lock()
	defer c.cache.mu.Unlock()
	if e, ok := o.(*corev1.Event); ok {
		c.cache.events = append(c.cache.events, e)
	}
	return nil
}

func (c *fakeCache) GetInformer(_ context.Context, o ctrl.Object, _ ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return &fakeInformer{cache: c, kind: fmt.Sprintf("%T", o)}, nil
}

// tell makes a change: before is nil for a new object, now for one that is gone.
func (c *fakeCache) deliver(before, now ctrl.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects == nil {
		c.objects, c.handlers = map[string]ctrl.Object{}, map[string][]toolscache.ResourceEventHandler{}
	}
	one := now
	if one == nil {
		one = before
	}
	kind := fmt.Sprintf("%T", one)
	key := kind + " " + types.NamespacedName{Namespace: one.GetNamespace(), Name: one.GetName()}.String()
	old := c.objects[key]
	if now == nil {
		delete(c.objects, key)
	} else {
		c.objects[key] = now
	}
	for _, h := range c.handlers[kind] {
		switch {
		case now == nil:
			h.OnDelete(before)
		case old != nil:
			h.OnUpdate(old, now)
		default:
			h.OnAdd(now, false)
		}
	}
}

type fakeInformer struct {
	ctrlcache.Informer
	cache *fakeCache
	kind  string
}

func (i *fakeInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	if i.cache.objects == nil {
		i.cache.objects, i.cache.handlers = map[string]ctrl.Object{}, map[string][]toolscache.ResourceEventHandler{}
	}
	i.cache.handlers[i.kind] = append(i.cache.handlers[i.kind], h)
	for key, o := range i.cache.objects {
		if strings.HasPrefix(key, i.kind+" ") {
			h.OnAdd(o, true)
		}
	}
	return synced{}, nil
}

func (i *fakeInformer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	delete(i.cache.handlers, i.kind)
	return nil
}

type synced struct{}

func (synced) HasSynced() bool                          { return true }
func (synced) HasSyncedChecker() toolscache.DoneChecker { return synced{} }
func (synced) Name() string                             { return "fake" }
func (synced) Done() <-chan struct{}                    { c := make(chan struct{}); close(c); return c }
