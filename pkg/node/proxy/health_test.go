package proxy

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

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
