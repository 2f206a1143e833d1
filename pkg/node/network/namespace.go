package network

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/userns"
)

// bindSelf mounts one of the calling thread's namespaces on path. name is as in /proc/self/ns.
func bindSelf(name, path string) error {
	return bind(fmt.Sprintf("/proc/self/task/%d/ns/%s", unix.Gettid(), name), path)
}

func bind(namespace, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := unix.Mount(namespace, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the namespace %s on %s: %w", namespace, path, err)
	}
	return nil
}

func threadNet() (fd int, err error) {
	return unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// join moves the calling thread into the namespace mounted on path.
func join(path string, kind int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, kind); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

// joinOwned creates a user namespace and the network, UTS and IPC namespaces that it owns, mounts all of them, and
// moves the calling thread into the latter three. A helper process creates them: only a process in a user namespace
// can create namespaces owned by it, and the threads of a multi-threaded process cannot enter one.
func (c *Config) joinOwned(uid string, r record) error {
	pid, end, err := c.Users.Start(r.Users)
	if err != nil {
		return err
	}
	defer end()
	if err := c.Failpoints.At("network.users-started"); err != nil {
		return err
	}
	for _, name := range []string{"user", "net", "uts", "ipc"} {
		if err := bind(fmt.Sprintf("/proc/%d/ns/%s", pid, name), filepath.Join(c.dir(uid), name)); err != nil {
			return err
		}
		if err := c.Failpoints.At("network.namespace-" + name); err != nil {
			return err
		}
	}
	for name, kind := range map[string]int{"net": unix.CLONE_NEWNET, "uts": unix.CLONE_NEWUTS, "ipc": unix.CLONE_NEWIPC} {
		if err := join(filepath.Join(c.dir(uid), name), kind); err != nil {
			return err
		}
	}
	return nil
}

// unshare moves the calling thread into the pod's own namespaces. It creates and mounts missing ones.
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
		return join(path, flag)
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
	return nil
}

func setNames(p Pod) error {
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

// sysctlPath returns the file of a sysctl. The elements of its name are separated by dots or, if an element contains
// dots, by slashes (sysctl.d(5)).
func sysctlPath(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		name = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	return "/proc/sys/" + name
}

// ipcSysctls are the file prefixes of the sysctls of an IPC namespace.
var ipcSysctls = []string{
	"/proc/sys/kernel/shm", "/proc/sys/kernel/msg", "/proc/sys/kernel/sem", "/proc/sys/fs/mqueue/",
}

// setSysctls sets the pod's sysctls in the calling thread's namespaces. ids are the pod's user IDs if it has a user
// namespace. It refuses sysctls that are not namespaced, since they would change the node. The thread may have lost
// its privileges on return and must not be used again.
func setSysctls(p Pod, ids userns.Range) error {
	write := func(name string) error {
		if err := os.WriteFile(sysctlPath(name), []byte(p.Sysctls[name]), 0); err != nil {
			return fmt.Errorf("set sysctl %s=%s: %w", name, p.Sysctls[name], err)
		}
		return nil
	}
	var ofIPC []string
	for _, name := range slices.Sorted(maps.Keys(p.Sysctls)) {
		path := sysctlPath(name)
		ipc := slices.ContainsFunc(ipcSysctls, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
		switch {
		case strings.Contains(path, "/../"), ipc && p.HostIPC,
			!ipc && (p.HostNetwork || !strings.HasPrefix(path, "/proc/sys/net/")):
			return fmt.Errorf("sysctl %q is not one of the pod's own network or IPC namespace", name)
		case ipc:
			ofIPC = append(ofIPC, name)
		default:
			if err := write(name); err != nil {
				return err
			}
		}
	}
	if len(ofIPC) > 0 && ids.Count > 0 {
		// Only the user namespace's root may write these. The raw system call changes the user of this thread alone.
		const same = ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(ids.First), same); errno != 0 {
			return fmt.Errorf("become the pod's root: %w", errno)
		}
	}
	for _, name := range ofIPC {
		if err := write(name); err != nil {
			return err
		}
	}
	return nil
}
