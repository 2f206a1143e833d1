package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
	"github.com/coracle-dev/coracle/test/netns"
)

func inOutside(t testing.TB, f func() error) {
	t.Helper()
	ns, err := unix.Open("/tmp/"+outsideNS(os.Getpid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(ns) }()
	require.NoError(t, thread.Run(func() error {
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	}))
}

// sendAs sends a packet with its source address as content. The calling thread's namespace need not have the address:
// a pod with NET_ADMIN can do the same.
func sendAs(from netip.Addr, to string) error {
	d := net.Dialer{
		LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1)
			}), err)
		},
	}
	conn, err := d.Dial("udp4", to)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte(from.String()))
	return err
}

// TestSpoofedFromOutside checks that another machine cannot send with the address of a pod, on which network policies
// and the DNS server rely.
func TestSpoofedFromOutside(t *testing.T) {
	n := newNet(t)
	pod, friend := setup(t, n, Pod{UID: "pod"}), setup(t, n, Pod{UID: "friend"})
	require.NoError(t, n.Routes(t.Context(), map[netip.Prefix]netip.Addr{
		netip.MustParsePrefix("10.42.1.0/24"): netip.MustParseAddr("192.168.77.9"),
	}))
	inOutside(t, func() error {
		out, err := netlink.LinkByName("out0")
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{
			Dst: prefixNet(podCIDR), Gw: nodeIP.AsSlice(), LinkIndex: out.Attrs().Index,
		})
	})
	for uid, to := range map[string]netip.Addr{"": nodeIP, "pod": pod.IP} {
		var c net.PacketConn
		listen := func() (err error) { c, err = net.ListenPacket("udp4", ":9000"); return err }
		if uid == "" {
			require.NoError(t, listen())
		} else {
			require.NoError(t, n.Enter(t.Context(), uid, listen))
		}
		var last string
		inOutside(t, func() error {
			// The last two are the machine's own address, and the address of a pod on the node at that address.
			for _, from := range []string{friend.IP.String(), "10.42.0.200", "192.168.77.9", "10.42.1.7"} {
				last = from
				if err := sendAs(netip.MustParseAddr(from), netip.AddrPortFrom(to, 9000).String()); err != nil {
					return err
				}
			}
			return nil
		})
		var seen []string
		for len(seen) == 0 || seen[len(seen)-1] != last {
			var b [64]byte
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			size, _, err := c.ReadFrom(b[:])
			require.NoError(t, err)
			seen = append(seen, string(b[:size]))
		}
		require.Equal(t, []string{"192.168.77.9", "10.42.1.7"}, seen, "at %s", to)
		require.NoError(t, c.Close())
	}
}

// TestConnectionLimit checks that a pod cannot fill the kernel's connection table, and that closed connections make
// room for new ones.
func TestConnectionLimit(t *testing.T) {
	closed := newNet(t)
	c := closed.Config
	c.RunDir, c.MaxConnections = filepath.Join(c.RunDir, "limited"), 20
	n, err := New(c)
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Reset(context.Background())) }()
	greedy := setup(t, n, Pod{UID: "greedy"})
	require.Contains(t, netns.Listing(t), "add @tracked { ip saddr ct count over 20 } goto over-limit")
	setup(t, n, Pod{UID: "modest"})
	var l net.Listener
	inOutside(t, func() (err error) { l, err = net.Listen("tcp4", "192.168.77.9:0"); return err })
	serveOn(t, l)
	to := l.Addr().String()
	dial := func(patience time.Duration) (conn net.Conn, err error) {
		err = n.Enter(t.Context(), "greedy", func() (err error) {
			conn, err = net.DialTimeout("tcp4", to, patience)
			return err
		})
		return conn, err
	}
	var open []net.Conn
	for range 20 {
		conn, err := dial(time.Minute)
		require.NoError(t, err)
		open = append(open, conn)
	}
	limited, err := n.Limited()
	require.NoError(t, err)
	require.Empty(t, limited)
	_, err = dial(300 * time.Millisecond)
	require.ErrorContains(t, err, "i/o timeout")
	limited, err = n.Limited()
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{greedy.IP}, limited)
	askFrom(t, n, "modest", to)
	for _, conn := range open {
		require.NoError(t, conn.Close())
	}
	askFrom(t, n, "greedy", to)
}

// TestSpoofedSources checks that a pod sends only from its own address, even if it may change its own network.
func TestSpoofedSources(t *testing.T) {
	n := newNet(t)
	own, other := setup(t, n, Pod{UID: "liar"}), setup(t, n, Pod{UID: "other"})
	forged := []netip.Addr{
		other.IP, nodeIP, outside, netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("10.42.0.200"),
	}
	listen := func(in string, address string) (c net.PacketConn) {
		var err error
		open := func() error { c, err = net.ListenPacket("udp4", address); return err }
		switch in {
		case "outside":
			inOutside(t, open)
		case "":
			require.NoError(t, open())
		default:
			require.NoError(t, n.Enter(context.Background(), in, open))
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for to, c := range map[string]net.PacketConn{
		nodeIP.String() + ":9000":   listen("", nodeIP.String()+":9000"),
		other.IP.String() + ":9000": listen("other", ":9000"),
		"192.168.77.9:9000":         listen("outside", "192.168.77.9:9000"),
	} {
		send := func(from netip.Addr) {
			require.NoError(t, n.Enter(context.Background(), "liar", func() error { return sendAs(from, to) }))
		}
		for _, a := range forged {
			send(a)
		}
		send(own.IP) // arrives after all others
		var b [64]byte
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		size, _, err := c.ReadFrom(b[:])
		require.NoError(t, err)
		require.Equal(t, own.IP.String(), string(b[:size]), "what arrives first at %s", to)
	}
	// IPv6 is off at the node's end, whatever the pod does at its end.
	require.NoError(t, n.Enter(t.Context(), "liar", func() error {
		for link, want := range map[string]string{podLink: "1\n", "default": "0\n"} { // the pod's links may have it
			off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + link + "/disable_ipv6")
			if err == nil && string(off) != want {
				return fmt.Errorf("disable_ipv6 of %s is %s", link, off)
			}
		}
		return nil
	}))
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + n.linkName("liar") + "/disable_ipv6")
	if err == nil {
		require.Equal(t, "1\n", string(off))
	}
}

// TestMetadata checks that link-local addresses except DNS reject pods at once, unless MetadataAccess is set.
func TestMetadata(t *testing.T) {
	require.NoError(t, node())
	metadata := netip.MustParseAddr("169.254.169.254")
	var open []net.Listener
	inOutside(t, func() error {
		out, err := netlink.LinkByName("out0")
		if err != nil {
			return err
		}
		if err := netlink.AddrReplace(out, &netlink.Addr{IPNet: ipNet(metadata)}); err != nil {
			return err
		}
		for _, port := range []string{":80", ":53"} {
			l, err := net.Listen("tcp4", metadata.String()+port)
			if err != nil {
				return err
			}
			open = append(open, l)
		}
		return nil
	})
	for _, l := range open {
		serveOn(t, l)
	}
	try := func(n *Net, port string) error {
		return n.Enter(context.Background(), "a", func() error { _, err := ask(metadata.String() + port); return err })
	}
	arrives := make(chan string, 8)
	inOutside(t, func() error {
		for _, port := range []string{":80", ":53"} {
			c, err := net.ListenPacket("udp4", metadata.String()+port)
			if err != nil {
				return err
			}
			var done sync.WaitGroup
			done.Go(func() {
				var b [16]byte
				for {
					size, _, err := c.ReadFrom(b[:])
					if err != nil {
						return
					}
					arrives <- string(b[:size])
				}
			})
			t.Cleanup(func() { _ = c.Close(); done.Wait() })
		}
		return nil
	})
	send := func(n *Net, port string) (refused error) {
		require.NoError(t, n.Enter(context.Background(), "a", func() error {
			c, err := net.Dial("udp4", metadata.String()+port)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if _, err := c.Write([]byte(port)); err != nil {
				return err
			}
			if port == ":53" {
				require.Equal(t, port, <-arrives)
				return nil
			}
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			_, refused = c.Read(make([]byte, 1))
			return nil
		}))
		return refused
	}
	closed := newNet(t)
	setup(t, closed, Pod{UID: "a"})
	require.ErrorIs(t, try(closed, ":80"), unix.ECONNREFUSED)
	require.NoError(t, try(closed, ":53"))
	require.ErrorIs(t, send(closed, ":80"), unix.EHOSTUNREACH, "by ICMP, at once")
	require.NoError(t, send(closed, ":53"))
	require.Empty(t, arrives)
	require.ErrorIs(t, ping(t, closed, "a", metadata), unix.EHOSTUNREACH)
	_, err := ask(metadata.String() + ":80")
	require.NoError(t, err, "the node itself")
	require.NoError(t, closed.Reset(context.Background()))

	n, err := New(Config{
		RunDir:         filepath.Join(closed.RunDir, "open"),
		NodeIP:         nodeIP,
		PodCIDR:        podCIDR,
		MetadataAccess: true,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Reset(context.Background())) }()
	setup(t, n, Pod{UID: "a"})
	require.NoError(t, try(n, ":80"))
}

// ping sends an ICMP echo request from a pod and returns what the kernel says of it.
func ping(t *testing.T, n *Net, uid string, to netip.Addr) (refused error) {
	t.Helper()
	require.NoError(t, n.Enter(context.Background(), uid, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}),
			unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 1}, 0, &unix.SockaddrInet4{Addr: to.As4()})); err != nil {
			return err
		}
		_, _, refused = unix.Recvfrom(fd, make([]byte, 64), 0)
		return nil
	}))
	return refused
}

func TestHostPortsOfTheNode(t *testing.T) {
	n := newNet(t)
	n.OwnPorts = []uint16{6443}
	for _, port := range []uint16{22, 6443} {
		_, err := n.Setup(context.Background(), Pod{
			UID: "a", HostPorts: []HostPort{{HostPort: port, PodPort: 80, Protocol: "TCP"}},
		})
		require.ErrorContains(t, err, "is reserved")
	}
	setup(t, n, Pod{UID: "a", HostPorts: []HostPort{{HostPort: 80, PodPort: 80, Protocol: "TCP"}}})
}

func TestHostPortsInUse(t *testing.T) {
	n := newNet(t)
	l, err := net.Listen("tcp4", "127.0.0.1:8070")
	require.NoError(t, err)
	serveOn(t, l)
	udp, err := net.ListenPacket("udp4", ":8071")
	require.NoError(t, err)
	defer udp.Close()
	for _, p := range []HostPort{
		{HostPort: 8070, PodPort: 80, Protocol: "TCP"}, {HostPort: 8071, PodPort: 80, Protocol: "UDP", HostIP: nodeIP},
	} {
		_, err := n.Setup(context.Background(), Pod{UID: "a", HostPorts: []HostPort{p}})
		require.ErrorContains(t, err, "is in use by a process of this machine: end it or choose another port")
	}
	list, err := n.List(context.Background())
	require.NoError(t, err)
	require.Empty(t, list, "what failed is undone")
	_, err = ask("127.0.0.1:8070")
	require.NoError(t, err)
	setup(t, n, Pod{UID: "a", HostPorts: []HostPort{
		{HostPort: 8070, PodPort: 80, Protocol: "TCP", HostIP: nodeIP}, {HostPort: 8071, PodPort: 80, Protocol: "TCP"},
	}})
	require.NoError(t, l.Close())
	setup(t, n, Pod{UID: "b", HostPorts: []HostPort{
		{HostPort: 8070, PodPort: 80, Protocol: "TCP", HostIP: netip.MustParseAddr("127.0.0.1")},
	}})
}
