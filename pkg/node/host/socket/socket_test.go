package socket

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestInUse(t *testing.T) {
	wide, loopback := netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.1")
	for _, on := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0"} {
		l, err := net.Listen("tcp", on)
		require.NoError(t, err)
		c, err := net.ListenPacket("udp", on)
		require.NoError(t, err)
		tcp := netip.MustParseAddrPort(l.Addr().String()).Port()
		udp := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
		for _, a := range []netip.Addr{wide, loopback} {
			require.True(t, InUse(unix.IPPROTO_TCP, netip.AddrPortFrom(a, tcp)), on)
			require.True(t, InUse(unix.IPPROTO_UDP, netip.AddrPortFrom(a, udp)), on)
			require.False(t, InUse(unix.IPPROTO_SCTP, netip.AddrPortFrom(a, tcp)))
		}
		other := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), tcp)
		require.Equal(t, on != "127.0.0.1:0", InUse(unix.IPPROTO_TCP, other), on)
		require.False(t, InUse(unix.IPPROTO_TCP, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), tcp)),
			"an address that the machine does not have")
		require.NoError(t, l.Close())
		require.NoError(t, c.Close())
		require.False(t, InUse(unix.IPPROTO_TCP, netip.AddrPortFrom(wide, tcp)))
		require.False(t, InUse(unix.IPPROTO_UDP, netip.AddrPortFrom(wide, udp)))
	}
}
