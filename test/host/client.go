package host

import (
	"context"
	"net"
	"path/filepath"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// REST returns the administrator's client configuration for the cluster, which must be running. It has no rate
// limit and connects from the host's network namespace.
func (h *Host) REST() *rest.Config {
	h.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(h.DataDir, "kubeconfig"))
	require.NoError(h.t, err)
	config.QPS = -1
	config.Dial = h.Dial
	return config
}

// Dial connects to an address from the host's network namespace.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	entered := h.InNetwork(func() error {
		// A socket belongs to its creator thread's network namespace.
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, entered
}

// Listen listens on an address in the host's network namespace.
func (h *Host) Listen(network, address string) (l net.Listener, err error) {
	entered := h.InNetwork(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, entered
}
