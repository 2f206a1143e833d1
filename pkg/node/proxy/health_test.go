package proxy

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/types"
)

// TestHealthPortsMove checks that a port that one service releases goes to another at once, in any order, and that a
// port in use by another process is opened later.
func TestHealthPortsMove(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	other, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	port := other.Addr().(*net.TCPAddr).Port
	h := newHealth(slog.New(slog.NewTextHandler(t.Output(), nil)))
	defer h.stop()
	defer http.DefaultClient.CloseIdleConnections()
	serve := func(from, to int) {
		name := func(n int) types.NamespacedName {
			return types.NamespacedName{Namespace: "default", Name: fmt.Sprint("s", n)}
		}
		h.set(map[types.NamespacedName]*servicePlan{name(from): {}, name(to): {healthPort: uint16(port), healthCount: 1}})
	}
	serve(0, 1)
	require.NoError(t, other.Close())
	for i := range 20 {
		serve(i, i+1)
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d", port))
		require.NoError(t, err)
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Contains(t, string(text), fmt.Sprintf(`"name":"s%d"`, i+1))
	}
}

// TestConnectionsOfHealthPorts checks that one client cannot open any number of connections to a health check port.
func TestConnectionsOfHealthPorts(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	h := newHealth(slog.New(slog.DiscardHandler))
	defer h.stop()
	h.set(map[types.NamespacedName]*servicePlan{{Namespace: "default", Name: "s"}: {healthPort: 30999, healthCount: 1}})
	var open []net.Conn
	for range maxChecksEach + 1 {
		c, err := net.Dial("tcp", "127.0.0.1:30999")
		require.NoError(t, err)
		defer c.Close()
		open = append(open, c)
	}
	last := open[maxChecksEach]
	require.NoError(t, last.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = last.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "closed at once, not after the header's timeout")
	for _, c := range open[:maxChecksEach] {
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
	}
}
