package network

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

func TestRoutes(t *testing.T) {
	n := newNet(t)
	ctx := context.Background()
	other, via := netip.MustParsePrefix("10.42.1.0/24"), netip.MustParseAddr("192.168.77.9")
	require.NoError(t, n.Routes(ctx, map[netip.Prefix]netip.Addr{other: via}))
	require.Error(t,
		n.Routes(ctx, map[netip.Prefix]netip.Addr{
			other:                                 via,
			netip.MustParsePrefix("10.42.2.0/24"): netip.MustParseAddr("198.51.100.1").Next(),
			netip.MustParsePrefix("fd00::/64"):    via,
		}))
	require.NoError(t, n.Close())
	again, err := New(n.Config)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	require.Equal(t, via, again.routes[other], "routes are found again")
	setup(t, again, Pod{UID: "a"})
	require.NoError(t, again.SetPodCIDR(ctx, netip.MustParsePrefix("10.42.7.0/24")))
	require.Equal(t, "10.42.7.2", setup(t, again, Pod{UID: "b"}).IP.String())
	require.NoError(t, again.Routes(ctx, nil))
	left, err := n.ours(handle(t))
	require.NoError(t, err)
	require.Len(t, left, 1, "only the route that ends the pod CIDR")
}

// TestLostRoutes checks that routes are restored that the kernel drops with a link or another program removes.
func TestLostRoutes(t *testing.T) {
	n := newNet(t)
	other, via := netip.MustParsePrefix("10.42.1.0/24"), netip.MustParseAddr("192.168.77.9")
	require.NoError(t, n.Routes(t.Context(), map[netip.Prefix]netip.Addr{other: via}))
	before := routes(t)
	require.Contains(t, before, "10.42.1.0/24 via 192.168.77.9")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	<-n.Ready()
	back := func() {
		t.Helper()
		require.Eventually(t, func() bool { return routes(t) == before }, time.Minute, 5*time.Millisecond)
	}

	up, err := netlink.LinkByName("up0")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetDown(up))
	require.NotContains(t, routes(t), "10.42.1.0/24")
	require.NoError(t, netlink.LinkSetUp(up))
	// As a network manager does.
	require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: via.AsSlice()}))
	back()

	gone, err := n.ours(handle(t))
	require.NoError(t, err)
	require.Len(t, gone, 2)
	for _, r := range gone {
		require.NoError(t, netlink.RouteDel(&r))
	}
	back()

	require.NoError(t, n.Routes(t.Context(), nil))
	require.NoError(t, n.repair())
	require.NotContains(t, routes(t), "10.42.1.0/24")
}

// TestTheNodesAddressComesBack checks the loss of the node's address, as at the renewal of a DHCP lease: the kernel
// removes the routes to pods that have it as their source. Pods stay reachable, and the routes use the address again
// when it returns.
func TestTheNodesAddressComesBack(t *testing.T) {
	n := newNet(t)
	s := setup(t, n, Pod{UID: "a"})
	route := s.IP.String() + " dev "
	before := routes(t)
	require.Contains(t, before, route)
	require.Contains(t, before, "src "+n.NodeIP.String())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	<-n.Ready()
	up, err := netlink.LinkByName("up0")
	require.NoError(t, err)
	addresses, err := netlink.AddrList(up, netlink.FAMILY_V4)
	require.NoError(t, err)
	require.Len(t, addresses, 1)
	require.NoError(t, netlink.AddrDel(up, &addresses[0]))
	require.Eventually(t, func() bool {
		now := routes(t)
		return strings.Contains(now, route) && !strings.Contains(now, "src "+n.NodeIP.String())
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, netlink.AddrAdd(up, &netlink.Addr{IPNet: addresses[0].IPNet}))
	require.Eventually(t, func() bool {
		for line := range strings.Lines(routes(t)) {
			if strings.HasPrefix(line, route) && strings.Contains(line, "src "+n.NodeIP.String()) {
				return true
			}
		}
		return false
	}, time.Minute, 5*time.Millisecond)
}

// TestWatchAddresses checks that changes of addresses and default routes are seen.
func TestWatchAddresses(t *testing.T) {
	newNet(t)
	changes, ended := make(chan struct{}, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- WatchAddresses(ctx, func() { changes <- struct{}{} }) }()
	<-changes
	up, err := netlink.LinkByName("up0")
	require.NoError(t, err)
	other := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 77), Mask: net.CIDRMask(32, 32)}}
	require.NoError(t, netlink.AddrAdd(up, other))
	<-changes
	require.NoError(t, netlink.AddrDel(up, other))
	<-changes
	cancel()
	require.NoError(t, <-ended)
}

func routes(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", "ip -4 route show | grep -v linkdown").Output()
	require.NoError(t, err)
	return string(out)
}

func handle(t testing.TB) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandle()
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}
