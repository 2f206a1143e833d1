package containerd

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// TestUnreachableRegistry checks that a pull fails soon, and once for all credentials, if the registry does not accept
// connections. A full backlog drops connections without an answer, like a firewall.
func TestUnreachableRegistry(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(fd, 0))
	name, err := unix.Getsockname(fd)
	require.NoError(t, err)
	address := fmt.Sprint("127.0.0.1:", name.(*unix.SockaddrInet4).Port)
	for err = nil; err == nil; { // until the backlog is full
		var c net.Conn
		if c, err = net.DialTimeout("tcp4", address, 100*time.Millisecond); err == nil {
			defer c.Close()
		}
	}
	r := bare(t)
	r.images.patience.dial = time.Second
	began := time.Now()
	auths := []runtime.Auth{{Username: "a"}, {}}
	_, err = r.Images().Pull(context.Background(), address+"/x:1", auths, runtime.PullObserver{})
	require.ErrorIs(t, err, runtime.ErrRefused)
	require.ErrorContains(t, err, "the registry cannot be reached: ")
	require.Less(t, time.Since(began), 5*time.Second, "it is tried once, not five times for each credential")
	require.NoError(t, unix.Close(fd))
	_, err = r.Images().Pull(context.Background(), address+"/x:1", nil, runtime.PullObserver{})
	require.ErrorContains(t, err, "the registry cannot be reached: ")
}
