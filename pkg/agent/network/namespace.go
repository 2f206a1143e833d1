package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bindSelf mounts the calling thread's namespace on path. name is as in /proc/self/ns.
func bindSelf(name, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	_ = f.Close()
	from := fmt.Sprintf("/proc/self/task/%d/ns/%s", unix.Gettid(), name)
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the %s namespace on %s: %w", name, path, err)
	}
	return nil
}

// threadNet opens the calling thread's network namespace.
func threadNet() (fd int, err error) {
	return unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// joinNet moves the calling thread into the network namespace mounted on path.
func joinNet(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

// unshare moves the calling thread into the pod's own namespaces, and mounts new ones. It enters those that are already mounted.
func (c *Config) unshare(uid string, p Pod) error {
	var flags int
	var names []string
	add := func(flag int, name string) error {
		path := filepath.Join(c.dir(uid), name)
		if !bound(path) {
			flags |= flag
			names = append(names, name)
			return nil
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Setns(fd, flag)
	}
	if !p.HostNetwork {
		if err := add(unix.CLONE_NEWNET, "net"); err != nil {
			return err
		}
		if err := add(unix.CLONE_NEWUTS, "uts"); err != nil {
			return err
		}
	}
	if !p.HostIPC {
		if err := add(unix.CLONE_NEWIPC, "ipc"); err != nil {
			return err
		}
	}
	if flags != 0 {
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("create namespaces: %w (coracle must run as root, with CAP_SYS_ADMIN)", err)
		}
		for _, name := range names {
			if err := bindSelf(name, filepath.Join(c.dir(uid), name)); err != nil {
				return err
			}
			if err := c.Failpoints.At("network.namespace-" + name); err != nil {
				return err
			}
		}
	}
	if p.HostNetwork {
		return nil
	}
	if p.Hostname != "" {
		if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", p.Hostname, err)
		}
	}
	if p.Domainname != "" {
		if err := unix.Setdomainname([]byte(p.Domainname)); err != nil {
			return fmt.Errorf("set domainname %q: %w", p.Domainname, err)
		}
	}
	return nil
}

// sysctlPath returns the file of a sysctl. Its name is separated by dots or, if an element contains dots, by slashes (sysctl.d(5)).
func sysctlPath(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		name = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	return "/proc/sys/" + name
}

// setSysctls sets sysctls of the calling thread's namespaces. It refuses those that are not namespaced, since they would change the node.
func setSysctls(p Pod) error {
	for name, value := range p.Sysctls {
		path := sysctlPath(name)
		own := strings.HasPrefix(path, "/proc/sys/net/") && !p.HostNetwork
		for _, ipc := range []string{"kernel/shm", "kernel/msg", "kernel/sem", "fs/mqueue/"} {
			own = own || strings.HasPrefix(path, "/proc/sys/"+ipc) && !p.HostIPC
		}
		if !own || strings.Contains(path, "/../") {
			return fmt.Errorf("sysctl %q is not one of the pod's own network or IPC namespace", name)
		}
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s=%s: %w", name, value, err)
		}
	}
	return nil
}
