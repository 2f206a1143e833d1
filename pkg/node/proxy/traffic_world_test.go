package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/network"
)

// world is a node (the tests' network namespace), pods on it, and a client outside.
type world struct {
	t       testing.TB
	net     *network.Net
	outside int // file descriptor of the outside's network namespace
	objects *fakeCache
	proxy   *Proxy
	change  func(*Proxy) // changes the proxy before it runs
	pods    map[string]netip.Addr
	cancel  context.CancelFunc
	ended   chan error
}

var mounts = sync.OnceValue(func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") })

func newWorld(t testing.TB) *world {
	require.NoError(t, mounts())
	// By default the kernel limits the rate of ICMP errors per peer; the tests exceed it.
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0))
	// The pods of every test have the same addresses, so forget the previous test's connections.
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
	// A query of the link lets the end that was set up first send (see network.connect).
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
	p, err := New(Config{
		Client: fakeClient{cache: w.objects}, NodeName: "n1", NodeIP: nodeAddr, ServiceCIDR: serviceCIDR,
		ClusterCIDR: clusterCIDR,
		Logger:      slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	})
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

// settle returns once the kernel has everything delivered before.
func (w *world) settle() {
	require.Eventually(w.t, func() bool {
		w.proxy.mu.Lock()
		defer w.proxy.mu.Unlock()
		return w.proxy.done == w.proxy.received
	}, patience, time.Millisecond)
}

// pod creates a pod whose server on port 8080, TCP and UDP, answers with the pod's name and the client's address.
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

// patience is the timeout for expected results; soon is how long to wait to see that nothing arrives.
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
			// Keep the port until the end: conntrack treats two queries from one port as one connection.
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

// firstRepeat is when the kernel retransmits a lost packet. It also retransmits, at once, if the port's last
// connection is not forgotten yet; that is not a loss.
const firstRepeat = time.Second

var errRepeated = errors.New("a packet was lost, and sent again")

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
