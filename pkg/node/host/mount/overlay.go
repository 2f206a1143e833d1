package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is a union of directories.
type Overlay struct {
	Lower []string // uppermost first
	// Upper receives what is written; the kernel needs Work for that. Without them the overlay is read-only and
	// needs at least two layers.
	Upper, Work string
}

// New creates the overlay. The caller must close the file descriptor.
func (o Overlay) New() (fd int, err error) {
	fd, err = o.create()
	if errors.Is(err, errOneOption) {
		err = Alone(func() (err error) {
			fd, err = o.createOld(o.Lower[0])
			return err
		})
	}
	return fd, o.explain(err)
}

// TryOverlay returns an error if the kernel has no overlay file system. It makes the kernel load the module.
func TryOverlay() error {
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen", err)
	}
	return unix.Close(fsfd)
}

// Mapped creates the overlay with ID-mapped lower layers (see MapIDs), since an overlay itself cannot be mapped.
// Upper is not mapped, since the kernel writes to it with the mounter's credentials: its files belong to the
// namespace's IDs on the host. scratch is a directory in which Mapped leaves mounts of the layers; the caller must
// use it alone, in a mount namespace of its own.
func (o Overlay) Mapped(users int, scratch string) (fd int, err error) {
	m := Overlay{Upper: o.Upper, Work: o.Work}
	for i, dir := range o.Lower {
		at := filepath.Join(scratch, strconv.Itoa(i))
		if err := attachMapped(users, dir, at); err != nil {
			return -1, fmt.Errorf("layer %s: %w", dir, err)
		}
		m.Lower = append(m.Lower, at)
	}
	fd, err = m.create()
	if errors.Is(err, errOneOption) {
		fd, err = m.createOld(m.Lower[0])
	}
	return fd, m.explain(err)
}

func attachMapped(users int, dir, at string) error {
	tree, err := BindPath(dir, false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := MapIDs(tree, users); err != nil {
		return err
	}
	return AttachNew(tree, at)
}

func (o Overlay) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("make an overlay of %d layers: %w", len(o.Lower), err)
}

// errOneOption means that the kernel takes all layers in one option. Since Linux 6.8 they can be given one by one.
// Linux 6.5 to 6.7 rejects the key "lowerdir+"; older kernels accept any key but fail to create the mount.
var errOneOption = errors.New("the kernel does not take layers one by one")

func (o Overlay) create() (fd int, err error) {
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fsfd)
	for _, dir := range o.Lower {
		err := unix.FsconfigSetString(fsfd, "lowerdir+", dir)
		if errors.Is(err, unix.EINVAL) {
			return -1, errOneOption
		}
		if err != nil {
			return -1, err
		}
	}
	options := [][2]string{{"source", "overlay"}}
	if o.Upper != "" {
		options = append(options, [2]string{"upperdir", o.Upper}, [2]string{"workdir", o.Work})
	}
	for _, option := range options {
		if err := unix.FsconfigSetString(fsfd, option[0], option[1]); err != nil {
			return -1, fmt.Errorf("%s: %w", option[0], err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); errors.Is(err, unix.EINVAL) {
		return -1, errOneOption // or the layers cannot be combined: then createOld fails too, with its own error
	} else if err != nil {
		return -1, err
	}
	return unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
}

// createOld creates the overlay with mount(2), on the directory on; the caller must be in a mount namespace of its
// own. The options must fit into a page, so createOld uses short names for the directories.
func (o Overlay) createOld(on string) (fd int, err error) {
	names := map[string]string{}
	for _, dir := range append([]string{o.Upper, o.Work}, o.Lower...) {
		if dir == "" {
			continue
		}
		at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(at) //nolint:revive // all are needed until the mount is made
		names[dir] = fmt.Sprintf("/proc/thread-self/fd/%d", at)
	}
	lower := make([]string, len(o.Lower))
	for i, dir := range o.Lower {
		lower[i] = names[dir]
	}
	options := "lowerdir=" + strings.Join(lower, ":")
	if o.Upper != "" {
		options += ",upperdir=" + names[o.Upper] + ",workdir=" + names[o.Work]
	}
	if len(options) >= os.Getpagesize() {
		return -1, errors.New("too many for this kernel: use Linux 6.8 or newer")
	}
	if err := unix.Mount("overlay", on, "overlay", 0, options); err != nil {
		return -1, err
	}
	return BindPath(on, false)
}
