// Package userns gives the pods of a node user namespaces of their own (KEP-127): each a range of the machine's user
// and group IDs, and the process in which its namespaces begin.
//
// Its invariant: no two owners have an ID in common, and none has one of the machine's own below Unit. Who takes a
// range records it before it is used, and gives it to Keep after a restart.
package userns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
)

// Config of a Manager.
type Config struct {
	// Program is coracle-shim, which makes the namespaces.
	Program string
	// Dir is a directory on the file system that containers are on. The Manager may make and remove a directory in it.
	Dir string
	// IDs are how many a pod gets, a multiple of Unit, which is the default. Pods is how many pods there may be.
	IDs  uint32
	Pods int
}

// Manager gives ranges, and namespaces with them. It is safe for concurrent use.
type Manager struct {
	c    Config
	pool *pool
	err  error // of the machine's configuration

	supported func() error
}

// New reads the machine's configuration. What is wrong with it Supported returns.
func New(c Config) *Manager {
	if c.IDs == 0 {
		c.IDs = Unit
	}
	m := &Manager{c: c}
	if m.pool, m.err = configured("/etc", c.IDs, c.Pods); m.err != nil {
		m.pool = newPool(Range{}, c.IDs) // ranges of earlier processes are still kept
	} else { // as with upstream: nodes may share a file system, and which range was released last is not known
		m.pool.next = rand.Uint32N(m.pool.all.Count / m.pool.each)
	}
	m.supported = sync.OnceValue(m.probe)
	return m
}

// Supported returns why pods cannot have user namespaces here, or nil. The first call tries it, which takes some
// milliseconds.
func (m *Manager) Supported() error { return m.supported() }

// Take gives a range to owner, or returns the one that it has.
func (m *Manager) Take(owner string) (Range, error) { return m.pool.take(owner) }

// Keep marks a range as an owner's since an earlier process.
func (m *Manager) Keep(owner string, r Range) { m.pool.keep(owner, r) }

// Release takes back the range of an owner, if it has one. Nothing may run with its IDs any more.
func (m *Manager) Release(owner string) { m.pool.release(owner) }

// Start starts a process with namespaces that begin with it: a user namespace with these IDs, and a network, an IPC and
// a UTS namespace, which belong to that one. It does nothing, and ends with this process at the latest. The caller ends
// it; its namespaces stay as long as somebody else has them.
func (m *Manager) Start(r Range) (pid int, end func(), err error) {
	p, err := start(m.c.Program, r)
	if err != nil {
		return 0, nil, err
	}
	return p.pid, p.end, nil
}

// probe makes what a pod needs.
func (m *Manager) probe() error {
	if m.err != nil {
		return m.err
	}
	const owner = "/probe" // no pod's UID has a slash
	r, err := m.pool.take(owner)
	if err != nil && m.pool.ofPods() { // of an earlier process, which has tried it
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

// probeMounts maps the owners of what containers consist of: a tmpfs, and an overlay of directories on the disk.
func probeMounts(disk string, r Range, users int) error {
	dir := filepath.Join(disk, ".user-namespaces")
	if err := os.RemoveAll(dir); err != nil { // of a process that was killed
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
		if err := unix.Mkdirat(root, "made", 0o700); err != nil { // an overlay that cannot be written is made all the same
			return err
		}
		if st.Uid != r.First || st.Gid != r.First {
			return errors.New("the kernel does not map the owners of an overlay's layers: use Linux 5.19 or newer")
		}
		return nil
	})
}
