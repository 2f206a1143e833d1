package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/host/userns/usernstest"
)

// users is a userns.Manager of two ranges, without coracle-shim.
type users struct{ held map[string]userns.Range }

func (u *users) Take(uid string) (userns.Range, error) {
	if len(u.held) > 1 {
		return userns.Range{}, userns.ErrNoRange
	}
	u.held[uid] = userns.Range{First: uint32(1+len(u.held)) * userns.Unit, Count: userns.Unit}
	return u.held[uid], nil
}

func (u *users) Keep(uid string, r userns.Range) { u.held[uid] = r }
func (u *users) Release(uid string)              { delete(u.held, uid) }

func (u *users) Start(r userns.Range) (int, func(), error) { return usernstest.Start(r) }

func newNetWithUsers(t *testing.T) (*Net, *users) {
	n := newNet(t)
	u := &users{held: map[string]userns.Range{}}
	n.Users = u
	return n, u
}

func ownerOf(t *testing.T, path string) (dev, ino uint64) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	const nsGetUserNS = 0xb701 // NS_GET_USERNS of linux/nsfs.h
	owner, err := unix.IoctlRetInt(fd, nsGetUserNS)
	require.NoError(t, err)
	defer unix.Close(owner)
	return inode(t, fmt.Sprintf("/proc/self/fd/%d", owner))
}

func inode(t *testing.T, path string) (dev, ino uint64) {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Dev, st.Ino
}

// TestOwnUsers checks that a pod with a user namespace has a working network in namespaces owned by it.
func TestOwnUsers(t *testing.T) {
	n, u := newNetWithUsers(t)
	s := setup(t, n, Pod{UID: "a", OwnUsers: true, Hostname: "pod-a", Sysctls: map[string]string{
		"net.core.somaxconn": "77", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "11"}})
	require.Equal(t, userns.Range{First: userns.Unit, Count: userns.Unit}, s.IDs)
	dev, ino := inode(t, s.UserNS)
	for _, path := range []string{s.NetNS, s.IPCNS, s.UTSNS} {
		ofDev, ofIno := ownerOf(t, path)
		require.Equal(t, [2]uint64{dev, ino}, [2]uint64{ofDev, ofIno}, path)
	}
	serve(t, n, "a", 80)
	plain := setup(t, n, Pod{UID: "b"})
	require.Empty(t, plain.UserNS)
	require.Equal(t, plain.IP.String(), askFrom(t, n, "b", s.IP.String()+":80"))

	require.NoError(t, thread.Run(func() error {
		for path, kind := range map[string]int{
			s.NetNS: unix.CLONE_NEWNET,
			s.IPCNS: unix.CLONE_NEWIPC,
			s.UTSNS: unix.CLONE_NEWUTS,
		} {
			if err := join(path, kind); err != nil {
				return err
			}
		}
		name, err := os.Hostname()
		require.NoError(t, err)
		require.Equal(t, "pod-a", name)
		for file, want := range map[string]string{
			"net/core/somaxconn":                  "77",
			"kernel/shm_rmid_forced":              "1",
			"fs/mqueue/msg_max":                   "11",
			"net/ipv4/ip_unprivileged_port_start": "0",
		} {
			data, err := os.ReadFile("/proc/sys/" + file)
			require.NoError(t, err)
			require.Equal(t, want+"\n", string(data), file)
		}
		return nil
	}))

	require.NoError(t, n.Close())
	next := &users{held: map[string]userns.Range{}}
	config := n.Config
	config.Users = next
	again, err := New(config)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	require.Equal(t, u.held, next.held)
	same, err := again.Setup(context.Background(), Pod{UID: "a", OwnUsers: true})
	require.NoError(t, err)
	require.Equal(t, s, same)
	require.NoError(t, again.Teardown(context.Background(), "a"))
	require.NoFileExists(t, s.UserNS)
	require.Empty(t, next.held)
}

func TestOwnUsersRefused(t *testing.T) {
	n, u := newNetWithUsers(t)
	for name, p := range map[string]Pod{"the node's network": {HostNetwork: true}, "the node's IPC": {HostIPC: true}} {
		p.UID, p.OwnUsers = "a", true
		_, err := n.Setup(context.Background(), p)
		require.ErrorContains(t, err, "cannot share the node's", name)
	}
	require.Empty(t, u.held)
	setup(t, n, Pod{UID: "a", OwnUsers: true})
	setup(t, n, Pod{UID: "b", OwnUsers: true})
	_, err := n.Setup(context.Background(), Pod{UID: "c", OwnUsers: true})
	require.ErrorIs(t, err, userns.ErrNoRange)
	require.NoError(t, n.Teardown(context.Background(), "a"))
	setup(t, n, Pod{UID: "c", OwnUsers: true})
	n.Users = nil
	_, err = n.Setup(context.Background(), Pod{UID: "d", OwnUsers: true})
	require.ErrorIs(t, err, ErrNoUsers)
}

// TestOwnUsersAreRecordedFirst checks that IDs are recorded before a namespace has them, and released on failure.
func TestOwnUsersAreRecordedFirst(t *testing.T) {
	n, u := newNetWithUsers(t)
	failure := errors.New("failed")
	for _, point := range []string{
		"network.users", "network.record", "network.users-started", "network.namespace-user", "network.namespace-ipc",
		"network.link", "network.linked",
	} {
		n.Failpoints = func(at string) error {
			if at != point {
				return nil
			}
			if point != "network.users" && point != "network.address" {
				found, err := n.records()
				require.NoError(t, err)
				require.Equal(t, u.held["a"], found["a"].Users)
			}
			return failure
		}
		_, err := n.Setup(context.Background(), Pod{UID: "a", OwnUsers: true})
		require.ErrorIs(t, err, failure, point)
		require.Empty(t, u.held, point)
		left, err := os.ReadDir(filepath.Join(n.RunDir, "ns"))
		require.NoError(t, err)
		require.Empty(t, left, point)
	}
}
