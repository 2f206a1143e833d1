package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/runtimetest"
)

// ownUsers gives pods user namespaces like the agent.
func ownUsers(t testing.TB, r *Runtime) func(testing.TB) (int, runtime.Users) {
	m := userns.New(userns.Config{Program: r.Shim(), Dir: r.config.DataDir, IDs: userns.Unit, Pods: 1})
	require.NoError(t, m.Supported())
	var next atomic.Int32
	return func(t testing.TB) (int, runtime.Users) {
		owner := fmt.Sprint(next.Add(1))
		ids, err := m.Take(owner)
		require.NoError(t, err)
		pid, end, err := m.Start(ids)
		require.NoError(t, err)
		t.Cleanup(func() {
			end()
			m.Release(owner)
		})
		return pid, runtime.Users{Path: fmt.Sprintf("/proc/%d/ns/user", pid), First: ids.First, Count: ids.Count}
	}
}

// withUsers puts a container into the user namespace and the process's other namespaces.
func withUsers(pid int, users runtime.Users, s *runtime.Spec) {
	s.Users, s.NetNS = &users, fmt.Sprintf("/proc/%d/ns/net", pid)
	for i := range s.Mounts {
		s.Mounts[i].MapIDs = true
	}
}

// Everything that works with the host's users also works with a user namespace.
func TestConformanceWithOwnUsers(t *testing.T) {
	engines(t, func(t *testing.T, r *Runtime) {
		t.Run("suite", (&runtimetest.Suite{Runtime: r, Real: true, Users: ownUsers(t, r)}).Run)
	})
}

// guest is a running container that sleeps.
type guest struct {
	testing.TB
	r  *Runtime
	id string
}

// sh runs a script in the container, and returns its output of both streams.
func (g guest) sh(script string) string {
	g.Helper()
	var out bytes.Buffer
	_, err := g.r.Exec(context.Background(), g.id, runtime.Exec{
		Command: []string{"sh", "-c", script}, Streams: runtime.Streams{Out: &out, Err: &out},
	})
	require.NoError(g, err)
	return strings.TrimSpace(out.String())
}

// runOwn runs a sleeping container of a pod with a user namespace, and returns the namespace's first ID.
func runOwn(t *testing.T, r *Runtime, pod string, change func(*runtime.Spec)) (guest, int) {
	t.Helper()
	s := spec(r.config, pod, "a", "sleep", "1000")
	change(&s)
	pid, ids := ownUsers(t, r)(t)
	withUsers(pid, ids, &s)
	require.NoError(t, r.Create(context.Background(), s))
	require.NoError(t, r.Start(context.Background(), s.ID))
	return guest{t, r, s.ID}, int(ids.First)
}

func owner(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// A container's root is an unprivileged user on the host, and root inside.
func TestRootOfItsOwnUsers(t *testing.T) {
	r := start(t)
	g, first := runOwn(t, r, "p", func(*runtime.Spec) {})
	require.Regexp(t, fmt.Sprintf(`^0 +%d +%d$`, first, userns.Unit), g.sh("cat /proc/self/uid_map"))
	require.Equal(t, g.sh("cat /proc/self/uid_map"), g.sh("cat /proc/self/gid_map"))
	c, err := r.Get(context.Background(), g.id)
	require.NoError(t, err)
	require.Equal(t, first, owner(t, fmt.Sprintf("/proc/%d", c.PID)))

	require.Equal(t, "0:0", g.sh("stat -c %u:%g /bin/busybox"))
	require.Equal(t, "65535:7", g.sh("touch /new && chown 65535:7 /new && stat -c %u:%g /new"))
	require.Contains(t, g.sh("chown 65536 /new"), "Invalid argument")
	upper := filepath.Join(r.dir(g.id), "upper")
	require.Equal(t, first+65535, owner(t, filepath.Join(upper, "new")))
	require.Equal(t, first, owner(t, upper))
	require.Contains(t, g.sh("mknod /disk b 8 0"), "Operation not permitted")
	require.Contains(t, g.sh("echo x >/proc/sysrq-trigger"), "an't create")

	// A process may reopen its output, whatever its user.
	require.Equal(t, "again", g.sh("echo again >/dev/stdout"))
	g, _ = runOwn(t, r, "q", func(s *runtime.Spec) {
		s.Command, s.UID = []string{"sh", "-c", "echo again >/dev/stdout; sleep 1000"}, new(int64(1000))
	})
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(spec(r.config, "q", "a").LogPath)
		return err == nil && strings.Contains(string(log), "again")
	}, time.Minute, time.Millisecond)
	require.Equal(t, "again", g.sh("echo again >/dev/stdout"))
}

// Per-user kernel limits of a pod affect neither the host nor other pods.
func TestUsersAreTheirOwn(t *testing.T) {
	r := start(t)
	pid, ids := ownUsers(t, r)(t)
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	require.NoError(t, err)
	defer namespace.Close()
	const nsGetOwnerUID = 0xb704 // NS_GET_OWNER_UID of linux/nsfs.h
	var uid uint32
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, namespace.Fd(), nsGetOwnerUID, uintptr(unsafe.Pointer(&uid)))
	require.Zero(t, errno)
	require.Equal(t, ids.First, uid)
}

// The owners of files on a volume are the same inside as on the disk, for each pod, unless the mount is not mapped.
func TestVolumesOfOwnUsers(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	for name, uid := range map[string]int{"root": 0, "seven": 7} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		require.NoError(t, os.Chown(filepath.Join(dir, name), uid, uid))
	}
	var guests []guest
	for _, pod := range []string{"p", "q"} {
		g, _ := runOwn(t, r, pod, func(s *runtime.Spec) {
			s.Mounts = []runtime.Mount{
				{Source: dir, Target: "/v"}, {Source: filepath.Join(dir, "seven"), Target: "/file", ReadOnly: true},
			}
		})
		guests = append(guests, g)
	}
	require.Equal(t, "0\n7\n7", guests[0].sh("stat -c %u /v/root /v/seven /file"))
	guests[0].sh("echo text >/v/made; chown 1000 /v/made; chmod 600 /v/made")
	require.Equal(t, 1000, owner(t, filepath.Join(dir, "made")))
	require.Equal(t, "1000 text", guests[1].sh("echo $(stat -c %u /v/made) $(cat /v/made)"))
	require.Contains(t, guests[1].sh("echo x >/file"), "ead-only")

	s := spec(r.config, "p", "plain", "sh", "-c", "stat -c %u /v/root; cat /v/root || echo nobody")
	s.Mounts = []runtime.Mount{{Source: dir, Target: "/v"}}
	pid, ids := ownUsers(t, r)(t)
	s.Users, s.NetNS = &ids, fmt.Sprintf("/proc/%d/ns/net", pid)
	require.NoError(t, r.Create(context.Background(), s))
	require.NoError(t, r.Start(context.Background(), s.ID))
	wait(t, r, s.ID, runtime.Exited)
	log, err := os.ReadFile(s.LogPath)
	require.NoError(t, err)
	require.Contains(t, string(log), "65534\n")
	require.Contains(t, string(log), "nobody\n")
}

// If a file system cannot be mapped, the container does not run, and the error names the file system.
func TestVolumesThatCannotBeMapped(t *testing.T) {
	r := start(t)
	s := spec(r.config, "p", "a", "true")
	s.Mounts = []runtime.Mount{{Source: "/proc/sys", Target: "/v"}}
	pid, ids := ownUsers(t, r)(t)
	withUsers(pid, ids, &s)
	require.NoError(t, r.Create(context.Background(), s))
	err := r.Start(context.Background(), s.ID)
	require.ErrorContains(t, err,
		"mount /v: /proc/sys cannot be used by a pod with hostUsers: false: proc has no ID-mapped mounts: unsupported "+
			"operation")
}

// A device has its owner and mode from the host, and the requested path.
func TestDevicesOfOwnUsers(t *testing.T) {
	r := start(t)
	elsewhere := filepath.Join(t.TempDir(), "zero")
	require.NoError(t, unix.Mknod(elsewhere, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	require.NoError(t, os.Chmod(elsewhere, 0o666))
	g, _ := runOwn(t, r, "p", func(s *runtime.Spec) {
		s.Devices = []runtime.Device{
			{HostPath: "/dev/zero", ContainerPath: "/dev/other/nothing"},
			{HostPath: "/dev/kmsg", Permissions: "r"},
			{HostPath: elsewhere},
		}
	})
	require.Equal(t, "4", g.sh("head -c 4 "+elsewhere+" | wc -c"))
	require.Equal(t, "4", g.sh("head -c 4 /dev/other/nothing | wc -c"))
	require.Equal(t, "character special file 1:b", g.sh("stat -c '%F %t:%T' /dev/kmsg"))
	require.NotContains(t, g.sh("ls /dev"), "vda")
}

// The container gets an unmasked /proc if it asks for it, and cannot change the host through it.
func TestUnmaskedProc(t *testing.T) {
	r := start(t)
	g, _ := runOwn(t, r, "p", func(s *runtime.Spec) { s.UnmaskedProc = true })
	require.Equal(t, "1", g.sh("grep -c ' /proc' /proc/mounts"))
	require.Equal(t, "1", g.sh("grep -c ' /proc proc rw' /proc/mounts"))
	for _, file := range []string{"vm/swappiness", "kernel/core_pattern", "kernel/panic"} {
		before, err := os.ReadFile("/proc/sys/" + file)
		require.NoError(t, err)
		require.Contains(t, g.sh("echo 1 >/proc/sys/"+file), "an't create")
		after, err := os.ReadFile("/proc/sys/" + file)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	masked, _ := runOwn(t, r, "q", func(*runtime.Spec) {})
	require.NotEqual(t, "1", masked.sh("grep -c ' /proc' /proc/mounts"))
}

// Not even a privileged container reaches the host's mounts, because its first process has never seen their paths.
func TestPrivilegedWithOwnUsers(t *testing.T) {
	r := start(t)
	g, _ := runOwn(t, r, "p", func(s *runtime.Spec) { s.Privileged = true })
	require.Contains(t, g.sh("grep CapEff /proc/self/status"), "1ff")
	require.Equal(t, "yes", g.sh("mkdir /m && mount -t tmpfs none /m && echo yes"))
	disk := g.sh("for d in /dev/vd? /dev/sd? /dev/nvme?n?; do [ -b $d ] && echo $d; done | head -1")
	if disk != "" {
		require.Contains(t, g.sh("mount -t ext4 "+disk+" /m"), "ermission denied")
		require.Contains(t, g.sh("head -c 1 "+disk), "ermission denied")
	}
	require.NotContains(t, g.sh("cut -d' ' -f5 /proc/self/mountinfo"), "/data/", "no mount point of the machine")
	require.Contains(t, g.sh("nsenter -t 1 -m -- true; unshare -n true && echo made"), "made",
		"what namespaces are for works")
}

// Nothing of such a container is mounted on the host, and nothing is left after its shim is killed.
func TestKilledShimOfOwnUsers(t *testing.T) {
	r := start(t)
	mounts := func() []string { // without mounts of parallel tests
		table, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		return slices.DeleteFunc(strings.Split(string(table), "\n"), func(line string) bool {
			return !strings.Contains(line, filepath.Dir(r.config.DataDir))
		})
	}
	before := mounts()
	g, _ := runOwn(t, r, "p", func(*runtime.Spec) {})
	require.Equal(t, before, mounts())
	require.NoError(t, r.pod("p").cmd.Process.Kill())
	wait(t, r, g.id, runtime.Exited)
	require.NoError(t, r.Remove(context.Background(), g.id))
	require.NoError(t, r.RemovePod(context.Background(), "p", spec(r.config, "p", "a").CgroupParent))
	require.NoDirExists(t, r.dir(g.id))
}
