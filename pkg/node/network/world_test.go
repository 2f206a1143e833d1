package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
)

// node sets up an uplink in the test's namespace: a link to a second namespace that stands for the outside.
var node = sync.OnceValue(func() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "up0", 1400
	ready := make(chan error)
	go func() {
		ready <- thread.Run(func() error {
			hostNS, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(hostNS) }()
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := bindSelf("net", "/tmp/"+outsideNS(os.Getpid())); err != nil {
				return err
			}
			h, err := netlink.NewHandle()
			if err != nil {
				return err
			}
			defer h.Close()
			a := netlink.NewLinkAttrs()
			a.Name = "out0"
			v := netlink.NewVeth(a)
			v.PeerName, v.PeerMTU, v.PeerNamespace = attrs.Name, 1400, netlink.NsFd(hostNS)
			if err := h.LinkAdd(v); err != nil {
				return err
			}
			out, err := h.LinkByName("out0")
			if err != nil {
				return err
			}
			return errors.Join(h.LinkSetUp(out),
				h.AddrAdd(out, &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{192, 168, 77, 9}, Mask: net.CIDRMask(24, 32)}}),
				h.AddrAdd(out, &netlink.Addr{IPNet: ipNet(outside)}))
		})
	}()
	if err := <-ready; err != nil {
		return err
	}
	up, err := netlink.LinkByName("up0")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(up),
		netlink.AddrAdd(up, &netlink.Addr{IPNet: &net.IPNet{IP: nodeIP.AsSlice(), Mask: net.CIDRMask(24, 32)}}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: net.IP{192, 168, 77, 9}}))
})

func outsideNS(pid int) string { return fmt.Sprintf("coracle-test-outside-%d", pid) }

func newNet(t testing.TB) *Net {
	t.Helper()
	require.NoError(t, node())
	run, err := os.MkdirTemp("", "net")
	require.NoError(t, err)
	// A tmpfs, like /run.
	require.NoError(t, unix.Mount("coracle-test", run, "tmpfs", 0, ""))
	n, err := New(Config{RunDir: filepath.Join(run, "n"), NodeIP: nodeIP, PodCIDR: podCIDR,
		ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16")})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, n.Reset(context.Background()))
		left, err := os.ReadDir(run)
		require.NoError(t, err)
		require.Empty(t, left, "Reset must leave nothing in the run directory")
		require.NoError(t, errors.Join(unix.Unmount(run, unix.MNT_DETACH), os.Remove(run)))
	})
	return n
}

func setup(t testing.TB, n *Net, p Pod) Sandbox {
	t.Helper()
	s, err := n.Setup(context.Background(), p)
	require.NoError(t, err)
	return s
}

// serve answers every TCP connection to port inside the pod with the client's address.
func serve(t testing.TB, n *Net, uid string, port int) {
	t.Helper()
	var l net.Listener
	require.NoError(t, n.Enter(context.Background(), uid, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
		return err
	}))
	serveOn(t, l)
}

func serveOn(t testing.TB, l net.Listener) {
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, host)
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); done.Wait() })
}

// ask connects and returns the server's answer, which is the client address it saw.
func ask(to string) (string, error) {
	c, err := net.DialTimeout("tcp4", to, time.Minute)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	data, err := io.ReadAll(c)
	return string(data), err
}

func askFrom(t testing.TB, n *Net, uid, to string) (seen string) {
	t.Helper()
	require.NoError(t, n.Enter(context.Background(), uid, func() (err error) { seen, err = ask(to); return err }))
	return seen
}
