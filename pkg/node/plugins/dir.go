package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Subdirectories of a Dir, named as in the kubelet's directory, because drivers expect them.
const (
	registryName = "plugins_registry"
	pluginsName  = "plugins"
	podsName     = "pods"
	// DevicePlugins holds the sockets of device plugins, and the agent's socket where they register.
	DevicePlugins = "device-plugins"
	// PodResources holds the socket of the API that lists the devices of containers.
	PodResources = "pod-resources"
)

// maxHeaders limits the headers of a plugin's response, in bytes.
const maxHeaders = 64 << 10

// Dir is the directory that plugins share with the agent, like /var/lib/kubelet for the kubelet.
type Dir struct {
	// root is the directory without links. Containers and plugins cannot replace it.
	root string
	// public is the path that plugins use: root, or a link to it.
	public string
}

// Open creates the directory root. Drivers usually expect it at link (/var/lib/kubelet), which becomes a symbolic
// link to root if the path is free or a link whose target is gone. With an empty link, none is created.
func Open(root, link string) (Dir, error) {
	d := Dir{root: root, public: root}
	for _, name := range []string{registryName, DevicePlugins, PodResources, pluginsName, podsName} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return d, err
		}
	}
	if link == "" {
		return d, nil
	}
	if target, err := os.Readlink(link); err == nil && target != root {
		if _, err := os.Stat(link); !errors.Is(err, fs.ErrNotExist) {
			return d, nil // belongs to another cluster
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return d, err
		}
	}
	err := os.Symlink(root, link)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(link), 0o755); err == nil {
			err = os.Symlink(root, link)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return d, err
	}
	if target, err := os.Readlink(link); err == nil && target == root {
		d.public = link
	}
	return d, nil
}

// Close removes the link that Open created. Call it when the node is deleted.
func Close(root, link string) error {
	if target, err := os.Readlink(link); err != nil || target != root {
		return nil
	}
	return os.Remove(link)
}

// Path returns a path below the directory as plugins name it.
func (d Dir) Path(parts ...string) string {
	return filepath.Join(append([]string{d.public}, parts...)...)
}

// HasSockets reports whether a host path is in a directory of plugin sockets, as pods that serve plugins mount it.
func (d Dir) HasSockets(path string) bool {
	for _, base := range []string{d.root, d.public} {
		for _, name := range []string{registryName, DevicePlugins, pluginsName} {
			if within(filepath.Clean(path), filepath.Join(base, name)) {
				return true
			}
		}
	}
	return false
}

// Root returns the directory itself, without links.
func (d Dir) Root() string { return d.root }

// DevicePlugins returns the directory of device plugins' sockets, without links.
func (d Dir) DevicePlugins() string { return filepath.Join(d.root, DevicePlugins) }

// relative converts a plugin's name for a path into a path relative to the directory.
func (d Dir) relative(path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(d.root, path)
	}
	for _, base := range []string{d.root, d.public} {
		if rel, ok := strings.CutPrefix(filepath.Clean(path), base+"/"); ok {
			return rel, nil
		}
	}
	return "", fmt.Errorf("socket %q is not below %s", path, d.public)
}

// Dial returns a connection to a plugin's socket, which connects with the first call. The socket must be below the
// directory, and no part of its path may be a symbolic link. receive limits the plugin's messages, in bytes.
func (d Dir) Dial(path string, receive int) (*grpc.ClientConn, error) {
	rel, err := d.relative(path)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return d.connect(ctx, rel) }),
		grpc.WithMaxHeaderListSize(maxHeaders), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(receive)))
}

func (d Dir) connect(ctx context.Context, rel string) (net.Conn, error) {
	fd, err := d.open(rel)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// Connect to the opened socket, even if the path names another one by now.
	return (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

// open opens a socket below the directory without following links.
func (d Dir) open(rel string) (int, error) {
	root, err := unix.Open(d.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: d.root, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, rel, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: filepath.Join(d.public, rel), Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = unix.ENOTSOCK
	}
	if err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "open", Path: filepath.Join(d.public, rel), Err: err}
	}
	return fd, nil
}

// socketAt returns the inode number of the socket at a path, or false if there is none.
func (d Dir) socketAt(rel string) (id uint64, ok bool) {
	fd, err := d.open(rel)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0, false
	}
	return st.Ino, true
}
