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

// Overlay is one directory made of others.
type Overlay struct {
	Lower []string // uppermost first
	// Upper takes what is written, with the help of Work. Both are in one directory. Without them the overlay is read-only, and has at least two layers.
	Upper, Work string
}

// New makes the overlay. The caller closes the file descriptor.
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

// Mapped makes the overlay of layers whose owners are mapped with a user namespace (see MapIDs), since an overlay itself cannot be mapped. scratch is a
// directory for mounts of them, which stay there; the caller has it to itself, in a mount namespace of its own.
func (o Overlay) Mapped(users int, scratch string) (fd int, err error) {
	place := func(name, source string) (string, error) {
		tree, err := BindPath(source, false)
		if err != nil {
			return "", err
		}
		defer unix.Close(tree)
		if err := MapIDs(tree, users); err != nil {
			return "", fmt.Errorf("%s: %w", source, err)
		}
		at := filepath.Join(scratch, name)
		return at, AttachNew(tree, at)
	}
	var m Overlay
	for i, dir := range o.Lower {
		at, err := place(strconv.Itoa(i), dir)
		if err != nil {
			return -1, err
		}
		m.Lower = append(m.Lower, at)
	}
	if o.Upper != "" {
		at, err := place("upper", filepath.Dir(o.Upper))
		if err != nil {
			return -1, err
		}
		m.Upper, m.Work = filepath.Join(at, filepath.Base(o.Upper)), filepath.Join(at, filepath.Base(o.Work))
	}
	fd, err = m.create()
	if errors.Is(err, errOneOption) {
		fd, err = m.createOld(m.Lower[0])
	}
	return fd, m.explain(err)
}

func (o Overlay) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("make an overlay of %d layers: %w", len(o.Lower), err)
}

// errOneOption is returned by create before Linux 6.8, which takes all layers in one option.
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
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, err
	}
	return unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
}

// createOld does it with mount(2), on a directory in a mount namespace of the caller's own. Its options have to fit into a page, so the directories have
// short names.
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
