// Package userns allocates user namespaces to a node's pods (KEP-127): each gets a range of the machine's user and
// group IDs, and a process that creates its namespaces.
//
// Its invariant: no two owners share an ID, and no owner has an ID below Unit, which are the machine's own. A caller
// must record a range before it uses the range, and pass it to Keep after a restart.
package userns

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
)

// Config configures a Manager.
type Config struct {
	// Program is coracle-shim, which creates the namespaces.
	Program string
	// Dir is a directory on the file system of the containers. The Manager may create and remove a directory in it.
	Dir string
	// IDs is the number of IDs per pod, a multiple of Unit, which is the default. Pods is the maximum number of
	// pods.
	IDs  uint32
	Pods int
}

// Manager allocates ranges and starts namespaces with them. It is safe for concurrent use.
type Manager struct {
	c    Config
	pool *pool
	err  error // error in the machine's configuration

	supported func() error
}

// New reads the machine's configuration. Supported returns its errors.
func New(c Config) *Manager {
	c.IDs = cmp.Or(c.IDs, Unit)
	m := &Manager{c: c}
	if m.pool, m.err = configured("/etc", c.IDs, c.Pods); m.err != nil {
		m.pool = newPool(Range{}, c.IDs) // Keep still works, for ranges of earlier processes
	} else { // random as upstream: nodes may share a file system, and the last released range is unknown
		m.pool.next = rand.Uint32N(m.pool.all.Count / m.pool.each)
	}
	m.supported = sync.OnceValue(m.probe)
	return m
}

// Supported returns why pods cannot have user namespaces on this node, or nil. The first call tries it, which takes
// some milliseconds.
func (m *Manager) Supported() error { return m.supported() }

// Take allocates a range to owner, or returns the one it has.
func (m *Manager) Take(owner string) (Range, error) { return m.pool.take(owner) }

// Keep records a range that an earlier process allocated to owner.
func (m *Manager) Keep(owner string, r Range) { m.pool.keep(owner, r) }

// Release frees the range of an owner, if it has one. No process may still use its IDs.
func (m *Manager) Release(owner string) { m.pool.release(owner) }

// Start starts a process in a new user namespace with these IDs, and in network, IPC and UTS namespaces owned by it.
// The process does nothing, and ends with this process at the latest. Call end to stop it; its namespaces remain
// while other processes or mounts use them.
func (m *Manager) Start(r Range) (pid int, end func(), err error) {
	p, err := start(m.c.Program, r)
	if err != nil {
		return 0, nil, err
	}
	return p.pid, p.end, nil
}

func (m *Manager) probe() error {
	if m.err != nil {
		return m.err
	}
	const owner = "/probe" // no pod's UID has a slash
	r, err := m.pool.take(owner)
	if err != nil && m.pool.ofPods() { // all ranges belong to pods of an earlier process, so they work
		return nil
	}
	if err != nil {
		return err
	}
	defer m.pool.release(owner)
	p, err := start(m.c.Program, r, "probe")
	if err != nil {
		return err
	}
	defer p.end()
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.pid))
	if err != nil {
		return err
	}
	defer users.Close()
	return probeMounts(m.c.Dir, r, int(users.Fd()))
}

// probeMounts maps the owners in the mounts of containers: a tmpfs, and an overlay of directories on the disk.
func probeMounts(disk string, r Range, users int) error {
	dir := filepath.Join(disk, ".user-namespaces")
	if err := os.RemoveAll(dir); err != nil { // left by a killed process
		return err
	}
	defer os.RemoveAll(dir)
	o := mount.Overlay{
		Lower: []string{filepath.Join(dir, "lower")},
		Upper: filepath.Join(dir, "upper"),
		Work:  filepath.Join(dir, "work"),
	}
	scratch := filepath.Join(dir, "scratch")
	for _, d := range []string{dir, o.Lower[0], o.Upper, o.Work, scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(o.Lower[0], "file"), nil, 0o600); err != nil {
		return err
	}
	return mount.Alone(func() error {
		memory, err := mount.Tmpfs(nil)
		if err != nil {
			return err
		}
		defer unix.Close(memory)
		if err := mount.MapIDs(memory, users); err != nil {
			return err
		}
		layers, err := mount.Tmpfs(nil)
		if err != nil {
			return err
		}
		defer unix.Close(layers)
		if err := mount.Attach(layers, scratch); err != nil {
			return err
		}
		root, err := o.Mapped(users, scratch)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		var st unix.Stat_t
		if err := unix.Fstatat(root, "file", &st, 0); err != nil {
			return err
		}
		if err := unix.Mkdirat(root, "made", 0o700); err != nil { // an unwritable overlay can be made
			return err
		}
		if st.Uid != r.First || st.Gid != r.First {
			return errors.New("the kernel does not map the owners of an overlay's layers: use Linux 5.19 or newer")
		}
		return nil
	})
}
