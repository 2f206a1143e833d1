package socket

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenUnix listens at the path, in place of a socket that a killed process left. Only this process's user and root
// can connect, from the first moment and with any umask: the kernel gives the file the mode of the unbound socket.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var changed error
		err := raw.Control(func(fd uintptr) { changed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, changed)
	}}
	return config.Listen(context.Background(), "unix", path)
}
