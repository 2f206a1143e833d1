//go:build cgo

package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/exeseal"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// stage is the mount namespace in which a container with a user namespace starts. The process that sets the container
// up has no rights on the host then, not even to traverse the directories above its bundle. So the shim copies all
// host mounts that the container needs, with mapped owners, to paths that everyone can reach. The stage contains
// nothing else. It belongs to the thread that made it, and is never mounted on the host.
type stage struct {
	c     *container
	files []*os.File // namespaces that the container joins; the user namespace is the last one
	binds []bind
}

// bind is a copy of a host mount for the stage.
type bind struct {
	from      string
	recursive bool
	mapped    bool
	to        string // path on the stage
	forMount  string // path in the container, for errors
}

func (c *container) startOnStage() error {
	s := &stage{c: c}
	defer s.close()
	if err := s.prepare(); err != nil {
		return err
	}
	if err := c.create(); err != nil {
		return err
	}
	return mount.Alone(func() error {
		if err := s.build(); err != nil {
			return err
		}
		return c.launch()
	})
}

func (s *stage) close() {
	for _, f := range s.files {
		_ = f.Close()
	}
}

// prepare changes the paths in the container's specification to paths on the stage.
func (s *stage) prepare() error {
	b := &s.c.bundle
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		s.binds = append(s.binds, bind{from: dir, to: dir, recursive: true})
	}
	// libcontainer keeps its state in the first directory, and executes the shim in the second, if it is in one.
	dirs := []string{s.c.dir}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if !exeseal.IsSelfExeCloned() {
		dirs = append(dirs, filepath.Dir(exe))
	}
	for _, dir := range dirs {
		s.binds = append(s.binds, bind{from: dir, to: dir})
	}
	for i := range b.Spec.Mounts {
		m := &b.Spec.Mounts[i]
		if m.Type != "bind" {
			continue
		}
		taken := bind{
			from:      m.Source,
			to:        filepath.Join("/mounts", strconv.Itoa(i)),
			recursive: slices.Contains(m.Options, "rbind"),
			forMount:  m.Destination,
		}
		if n := slices.Index(m.Options, shim.MapIDs); n >= 0 {
			taken.mapped, m.Options = true, slices.Delete(m.Options, n, n+1)
		}
		s.binds, m.Source = append(s.binds, taken), taken.to
	}
	for i := range b.Spec.Linux.Namespaces {
		if n := &b.Spec.Linux.Namespaces[i]; n.Path != "" {
			if n.Path, err = s.open(n.Path); err != nil {
				return fmt.Errorf("the pod's %s namespace: %w", n.Type, err)
			}
		}
	}
	if b.Users.Path, err = s.open(b.Users.Path); err != nil {
		return fmt.Errorf("the pod's user namespace: %w", err)
	}
	return nil
}

// open opens a namespace, and returns a path of it that is also valid on the stage, until the stage is closed.
func (s *stage) open(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	s.files = append(s.files, f)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), nil
}

// build builds the stage and makes it the root of the calling thread's mount namespace.
func (s *stage) build() (err error) {
	b, dir, root := &s.c.bundle, s.c.dir, shim.Rootfs(s.c.dir)
	users := int(s.files[len(s.files)-1].Fd())
	trees := make([]int, 0, len(s.binds))
	defer func() {
		for _, fd := range trees {
			_ = unix.Close(fd)
		}
	}()
	for _, from := range s.binds { // copy all mounts first: the stage may be mounted below one of them
		fd, err := from.take(users)
		if err != nil {
			return err
		}
		trees = append(trees, fd)
	}
	floor, err := mount.Tmpfs(map[string]string{"mode": "0711"})
	if err != nil {
		return err
	}
	defer unix.Close(floor)
	if err := mount.Attach(floor, root); err != nil {
		return err
	}
	if err := os.Chown(shim.Upper(dir), int(b.Users.First), int(b.Users.First)); err != nil {
		return err
	}
	overlay, err := mount.Overlay{Lower: b.Lower, Upper: shim.Upper(dir), Work: shim.Work(dir)}.Mapped(users,
		filepath.Join(root, "layers"))
	if err != nil {
		return fmt.Errorf("mount the root file system: %w", err)
	}
	defer unix.Close(overlay)
	for i, fd := range trees {
		if err := mount.AttachNew(fd, filepath.Join(root, s.binds[i].to)); err != nil {
			return err
		}
	}
	if err := mount.Attach(overlay, filepath.Join(root, root)); err != nil { // root is in the bundle, a tree
		return err
	}
	return enter(root)
}

// take makes a detached copy of the mount.
func (b bind) take(users int) (int, error) {
	fd, err := mount.BindPath(b.from, b.recursive)
	if err == nil && b.mapped {
		if err = mount.MapIDs(fd, users); err != nil {
			_ = unix.Close(fd)
			if errors.Is(err, errors.ErrUnsupported) {
				err = fmt.Errorf("%s cannot be used by a pod with hostUsers: false: %w", b.from, err)
			}
		}
	}
	if err != nil && b.forMount != "" {
		err = fmt.Errorf("mount %s: %w", b.forMount, err)
	}
	return fd, err
}

// enter makes a mount the root of the calling thread's mount namespace, and detaches everything else.
func enter(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter the stage: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's mounts: %w", err)
	}
	return unix.Chdir("/")
}

// join makes a container join the pod's user namespace. The specification has only its ID mappings, because
// libcontainer would fork a process to read the mappings of a namespace given by path.
func join(config *configs.Config, path string) {
	for i := range config.Namespaces {
		if config.Namespaces[i].Type == configs.NEWUSER {
			config.Namespaces[i].Path = path
		}
	}
}
