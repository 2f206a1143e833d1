package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
	"github.com/coracle-dev/coracle/test/netns"
)

func TestMain(m *testing.M) {
	netns.Main(m, func(pid int) { _ = os.Remove("/tmp/" + outsideNS(pid)) })
}

var (
	nodeIP  = netip.MustParseAddr("192.168.77.1")
	outside = netip.MustParseAddr("203.0.113.9")
	podCIDR = netip.MustParsePrefix("10.42.0.0/24")
)

func TestTraffic(t *testing.T) {
	n := newNet(t)
	a := setup(t, n, Pod{UID: "a", Hostname: "pod-a"})
	b := setup(t, n, Pod{UID: "b"})
	serve(t, n, "a", 80)

	seen, err := ask(a.IP.String() + ":80")
	require.NoError(t, err)
	require.Equal(t, nodeIP.String(), seen, "the node reaches a pod with the node's address")
	require.Equal(t, b.IP.String(), askFrom(t, n, "b", a.IP.String()+":80"), "pods see each other's addresses")
	require.Equal(t, "127.0.0.1", askFrom(t, n, "a", "127.0.0.1:80"), "a pod has a loopback")

	onNode, err := net.Listen("tcp4", ":9000")
	require.NoError(t, err)
	serveOn(t, onNode)
	require.Equal(t, a.IP.String(), askFrom(t, n, "a", nodeIP.String()+":9000"), "a pod reaches the node")
	local, err := net.Listen("tcp4", "127.0.0.1:9001")
	require.NoError(t, err)
	serveOn(t, local)
	require.NoError(t, n.Enter(context.Background(), "a", func() error {
		// A pod must not reach the node's loopback, even with a route to it through its link.
		h, err := netlink.NewHandle()
		require.NoError(t, err)
		defer h.Close()
		eth0, err := h.LinkByName("eth0")
		require.NoError(t, err)
		require.Equal(t, 1400, eth0.Attrs().MTU, "the MTU is that of the node's link")
		require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0))
		require.NoError(t, h.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IP{127, 0, 0, 2}, Mask: net.CIDRMask(32, 32)},
			Gw: gateway.AsSlice(), LinkIndex: eth0.Attrs().Index, Flags: int(netlink.FLAG_ONLINK), Table: 255}))
		_, err = net.DialTimeout("tcp4", "127.0.0.2:9001", 100*time.Millisecond)
		require.Error(t, err)
		return nil
	}))

	var far net.Listener
	require.NoError(t, thread.Run(func() (err error) {
		if err = join("/tmp/"+outsideNS(os.Getpid()), unix.CLONE_NEWNET); err == nil {
			far, err = net.Listen("tcp4", ":80")
		}
		return err
	}))
	serveOn(t, far)
	require.Equal(t, nodeIP.String(), askFrom(t, n, "a", outside.String()+":80"), "the outside sees the node's address")

	// A connection to an unassigned pod address fails at once.
	_, err = net.DialTimeout("tcp4", "10.42.0.200:80", time.Minute)
	require.ErrorIs(t, err, unix.EHOSTUNREACH)
}

func TestHostPorts(t *testing.T) {
	n := newNet(t)
	a := setup(t, n, Pod{UID: "a", HostPorts: []HostPort{
		{HostPort: 8080, PodPort: 80, Protocol: "TCP"},
		{HostPort: 8081, PodPort: 80, Protocol: "TCP", HostIP: netip.MustParseAddr("127.0.0.1")},
		{HostPort: 8082, PodPort: 80, Protocol: "UDP"}}})
	require.Contains(t, netns.Listing(t), "127.0.0.1 . tcp . 8081 : "+a.IP.String()+" . 80")
	b := setup(t, n, Pod{UID: "b"})
	serve(t, n, "a", 80)
	for _, c := range []struct{ from, to, seen string }{
		{"", nodeIP.String() + ":8080", nodeIP.String()},
		{"", "127.0.0.1:8080", nodeIP.String()},
		{"", "127.0.0.1:8081", nodeIP.String()},
		{"b", nodeIP.String() + ":8080", b.IP.String()},
		{"a", nodeIP.String() + ":8080", nodeIP.String()}, // hairpin
	} {
		var seen string
		var err error
		if c.from == "" {
			seen, err = ask(c.to)
		} else {
			seen = askFrom(t, n, c.from, c.to)
		}
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.seen, seen, "%+v", c)
	}
	_, err := ask(nodeIP.String() + ":8081")
	require.ErrorIs(t, err, unix.ECONNREFUSED, "a host port with a host address is on that address only")
	require.NoError(t, thread.Run(func() error {
		require.NoError(t, join("/tmp/"+outsideNS(os.Getpid()), unix.CLONE_NEWNET))
		seen, err := ask(nodeIP.String() + ":8080")
		require.Equal(t, "192.168.77.9", seen)
		return err
	}))

	_, err = n.Setup(context.Background(), Pod{
		UID: "c", HostPorts: []HostPort{{HostPort: 8080, PodPort: 90, Protocol: "TCP"}},
	})
	require.ErrorContains(t, err, "used by another pod")
	_, err = ask(nodeIP.String() + ":8080")
	require.NoError(t, err, "a conflict takes nothing from who has the port")

	// Another process takes over, with the host ports.
	require.NoError(t, n.Close())
	again, err := New(n.Config)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	_, err = ask(nodeIP.String() + ":8080")
	require.NoError(t, err)
	same, err := again.Setup(context.Background(), Pod{UID: "a"})
	require.NoError(t, err)
	require.Equal(t, a, same)
	require.NoError(t, again.Teardown(context.Background(), "a"))
	_, err = ask(nodeIP.String() + ":8080")
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	list, err := again.List(context.Background())
	require.NoError(t, err)
	require.Equal(t, []Sandbox{b}, list)
}

// TestHostPortsRewritten checks that writing the table again, in the middle of Setup or Teardown, neither loses a pod's
// host ports nor restores released ones.
func TestHostPortsRewritten(t *testing.T) {
	n := newNet(t)
	points := map[string]int{}
	n.Failpoints = func(at string) error {
		if at == "network.host-ports" || at == "network.ports-released" {
			points[at]++
			return n.Rewrite(context.Background())
		}
		return nil
	}
	p := Pod{UID: "a", HostPorts: []HostPort{{HostPort: 8080, PodPort: 80, Protocol: "TCP"}}}
	a := setup(t, n, p)
	require.Contains(t, netns.Listing(t), "tcp . 8080 : "+a.IP.String()+" . 80")
	require.NoError(t, n.Teardown(context.Background(), "a"))
	require.NotContains(t, netns.Listing(t), "8080")
	require.Equal(t, map[string]int{"network.host-ports": 1, "network.ports-released": 1}, points)
}

// TestConnectionsEndWithTheirPod checks that a peer of a pod that ended has no tracked connection to the next pod at
// its address: network policies let the packets of such a connection pass.
func TestConnectionsEndWithTheirPod(t *testing.T) {
	n := newNet(t)
	flows := func(ip netip.Addr) (all []string) {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		require.NoError(t, err)
		for _, f := range list {
			if leftovers(func(a netip.Addr) bool { return a == ip }).MatchConntrackFlow(f) {
				all = append(all, f.String())
			}
		}
		return all
	}
	setup(t, n, Pod{UID: "peer"})
	victim := setup(t, n, Pod{UID: "before"})
	serve(t, n, "before", 5432)
	askFrom(t, n, "peer", victim.IP.String()+":5432")
	require.NotEmpty(t, flows(victim.IP))
	require.NoError(t, n.Teardown(t.Context(), "before"))
	require.NotEmpty(t, flows(victim.IP))

	n.pool.next = number(victim.IP) - number(podCIDR.Addr()) - 2 // as after the whole range
	require.Equal(t, victim.IP, setup(t, n, Pod{UID: "after"}).IP)
	require.Empty(t, flows(victim.IP))
	serve(t, n, "after", 5432)
	askFrom(t, n, "peer", victim.IP.String()+":5432")
	other := setup(t, n, Pod{UID: "other"})
	require.NotEqual(t, victim.IP, other.IP)
	require.NotEmpty(t, flows(victim.IP), "connections of a pod that runs stay")
	require.False(t, n.pool.stale()(other.IP))
}

func TestNamespaces(t *testing.T) {
	n := newNet(t)
	own, err := os.Hostname()
	require.NoError(t, err)
	s := setup(t, n, Pod{UID: "a", Hostname: "pod-a", Domainname: "x.example", Sysctls: map[string]string{
		"net.core.somaxconn": "77", "kernel.shm_rmid_forced": "1"}})
	require.NoError(t, thread.Run(func() error {
		for _, path := range []string{s.NetNS, s.IPCNS, s.UTSNS} {
			fd, err := unix.Open(path, unix.O_RDONLY, 0)
			require.NoError(t, err)
			require.NoError(t, unix.Setns(fd, 0))
			require.NoError(t, unix.Close(fd))
		}
		name, err := os.Hostname()
		require.NoError(t, err)
		require.Equal(t, "pod-a", name)
		for file, want := range map[string]string{
			"net/core/somaxconn":     "77",
			"kernel/shm_rmid_forced": "1",
			"kernel/domainname":      "x.example",
		} {
			data, err := os.ReadFile("/proc/sys/" + file)
			require.NoError(t, err)
			require.Equal(t, want, strings.TrimSpace(string(data)), file)
		}
		return nil
	}))
	now, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, own, now)

	host := setup(t, n, Pod{UID: "h", HostNetwork: true})
	require.Equal(t, Host, host.NetNS)
	require.Equal(t, Host, host.UTSNS)
	require.False(t, host.IP.IsValid())
	require.True(t, bound(host.IPCNS))
	all := setup(t, n, Pod{UID: "all", HostNetwork: true, HostIPC: true})
	require.Equal(t, Sandbox{UID: "all", NetNS: Host, IPCNS: Host, UTSNS: Host}, all)

	for _, sysctl := range []string{"kernel.panic", "vm.swappiness", "net.ipv4.nonesuch", "net/../kernel/panic"} {
		_, err = n.Setup(context.Background(), Pod{UID: "bad", Sysctls: map[string]string{sysctl: "1"}})
		require.Error(t, err, sysctl)
	}
	_, err = n.Setup(context.Background(), Pod{UID: "../x"})
	require.Error(t, err)
	list, err := n.List(context.Background())
	require.NoError(t, err)
	require.Len(t, list, 3, "what failed is undone")
}

// TestTrafficIsCounted counts what a pod receives and sends, in bytes with headers.
func TestTrafficIsCounted(t *testing.T) {
	n := newNet(t)
	web := setup(t, n, Pod{UID: "web"})
	setup(t, n, Pod{UID: "client"})
	setup(t, n, Pod{UID: "host", HostNetwork: true})
	var l net.Listener
	require.NoError(t, n.Enter(context.Background(), "web", func() (err error) {
		l, err = net.Listen("tcp4", ":80")
		return err
	}))
	var got sync.WaitGroup
	got.Go(func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	})
	require.NoError(t, n.Enter(context.Background(), "client", func() error {
		c, err := net.Dial("tcp4", web.IP.String()+":80")
		if err != nil {
			return err
		}
		_, err = c.Write(make([]byte, 1<<20))
		return errors.Join(err, c.Close())
	}))
	got.Wait()
	require.NoError(t, l.Close())
	pods, node, err := n.Traffic(context.Background())
	require.NoError(t, err)
	require.Len(t, pods, 2)
	require.Equal(t, "eth0", pods["web"].Interface)
	require.Greater(t, pods["web"].Received.Bytes, uint64(1<<20))
	require.Less(t, pods["web"].Sent.Bytes, uint64(1<<19))
	require.Positive(t, pods["web"].Sent.Packets)
	require.Greater(t, pods["client"].Sent.Bytes, uint64(1<<20))
	require.Len(t, node, 1)
	require.Equal(t, "up0", node[0].Interface)
}

func TestCrash(t *testing.T) {
	n := newNet(t)
	ready, half, empty := setup(t, n, Pod{UID: "ready"}), setup(t, n, Pod{UID: "half"}), setup(t, n, Pod{UID: "empty"})
	require.NoError(t, n.Close())
	r, _ := n.get("half")
	r.Ready = false
	require.NoError(t, n.save("half", r))
	require.NoError(t, os.Remove(filepath.Join(n.dir("empty"), recordFile)))
	reboot := record{IP: netip.MustParseAddr("10.42.0.100"), Ready: true}
	require.NoError(t, os.Mkdir(n.dir("reboot"), 0o755))
	require.NoError(t, n.save("reboot", reboot))

	again, err := New(n.Config)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	require.Equal(t, ready, setup(t, again, Pod{UID: "ready"}))
	require.Equal(t, half, setup(t, again, Pod{UID: "half"}))
	require.Equal(t, reboot.IP, setup(t, again, Pod{UID: "reboot"}).IP)
	require.NotEqual(t, empty.IP, setup(t, again, Pod{UID: "new"}).IP)
	setup(t, again, Pod{UID: "empty"})
	serve(t, again, "half", 80)
	_, err = ask(half.IP.String() + ":80")
	require.NoError(t, err)
}

// TestTwoInstallations checks that two installations in one network never adopt or remove each other's state.
func TestTwoInstallations(t *testing.T) {
	require.NoError(t, node())
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	n := newNet(t)
	ctx := context.Background()
	via := netip.MustParseAddr("192.168.77.9")
	routes := map[netip.Prefix]netip.Addr{netip.MustParsePrefix("10.42.1.0/24"): via}
	require.NoError(t, n.Routes(ctx, routes))
	setup(t, n, Pod{UID: "first"})
	before := state(t)

	run, err := os.MkdirTemp("", "net")
	require.NoError(t, err)
	defer os.RemoveAll(run)
	second, err := New(Config{
		RunDir:  filepath.Join(run, "n"),
		NodeIP:  nodeIP,
		PodCIDR: podCIDR,
		Prefix:  "coraclewithalong",
	})
	require.NoError(t, err)
	require.Empty(t, second.routes, "the first one's routes are not the second one's to remove")
	require.NoError(t, second.Routes(ctx, routes))
	require.NoError(t, second.SetPodCIDR(ctx, netip.MustParsePrefix("10.42.7.0/24")))
	setup(t, second, Pod{UID: "first"})
	setup(t, second, Pod{UID: "second"})
	require.NotEqual(t, before, state(t))
	links, err := second.Config.links(handle(t))
	require.NoError(t, err)
	require.Len(t, links, 2)
	require.NoError(t, second.Routes(ctx, nil))
	require.NoError(t, second.Routes(ctx, routes))
	require.NoError(t, second.Reset(ctx))
	require.Equal(t, before, state(t))

	second, err = New(second.Config)
	require.NoError(t, err)
	require.NoError(t, second.SetPodCIDR(ctx, podCIDR))
	require.NoError(t, n.Reset(ctx))
	forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	require.NoError(t, err)
	require.Equal(t, "1\n", string(forward), "the other one's pods need it")
	left, err := second.ours(handle(t))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.NoError(t, second.Reset(ctx))
}

func TestParallel(t *testing.T) {
	n := newNet(t)
	var wait sync.WaitGroup
	began := time.Now()
	ips := make([]netip.Addr, 30)
	errs := make([]error, 30)
	for i := range ips {
		wait.Go(func() {
			s, err := n.Setup(context.Background(), Pod{UID: fmt.Sprint("pod-", i)})
			ips[i], errs[i] = s.IP, err
		})
	}
	wait.Wait()
	t.Logf("30 pods at once: %s", time.Since(began))
	require.NoError(t, errors.Join(errs...))
	seen := map[netip.Addr]bool{}
	for _, ip := range ips {
		require.False(t, seen[ip])
		seen[ip] = true
	}
	// Concurrent Setup and Teardown of one pod end in one of the two states.
	for i := range 20 {
		wait.Go(func() {
			if i%2 == 0 {
				_, _ = n.Setup(context.Background(), Pod{UID: "same"})
			} else {
				_ = n.Teardown(context.Background(), "same")
			}
		})
	}
	wait.Wait()
	setup(t, n, Pod{UID: "same"})
	serve(t, n, "same", 80)
	r, _ := n.get("same")
	_, err := ask(r.IP.String() + ":80")
	require.NoError(t, err)
}

// TestReset checks that Reset restores the machine, even with a process still in a pod's namespace.
func TestReset(t *testing.T) {
	require.NoError(t, node())
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	before := state(t)
	n := newNet(t)
	for i := range 5 {
		setup(t, n, Pod{
			UID: fmt.Sprint("pod-", i), HostPorts: []HostPort{{HostPort: uint16(7000 + i), PodPort: 80, Protocol: "TCP"}},
		})
	}
	s := setup(t, n, Pod{UID: "held"})
	held, err := os.Open(s.NetNS)
	require.NoError(t, err)
	defer func() { _ = held.Close() }()
	require.NoError(t,
		n.Routes(context.Background(), map[netip.Prefix]netip.Addr{
			netip.MustParsePrefix("10.42.1.0/24"): netip.MustParseAddr("192.168.77.9"),
		}))
	require.NotEqual(t, before, state(t))
	require.NoError(t, n.Reset(context.Background()))
	require.Equal(t, before, state(t))
	require.NoError(t, Reset(context.Background(), n.Config), "may be repeated")
}

func state(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, cmd := range []string{
		"ip -o link | cut -d: -f2", "ip route show table all | grep -v fe80 | grep -v multicast",
		"ip neigh show nud permanent", "nft list ruleset", "cat /proc/sys/net/ipv4/ip_forward", "mount | grep /TestReset",
	} {
		out, err := exec.Command("sh", "-c", cmd).Output() // ip fails for links whose peer was just removed
		require.True(t, err == nil || len(out) == 0, "%s: %s", cmd, out)
		b.Write(out)
	}
	return b.String()
}
