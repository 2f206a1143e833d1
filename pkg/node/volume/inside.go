package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// OpenInside opens a regular file inside a directory that containers can write to. Symbolic links are resolved as if
// root were the root of the file system (openat2(2), RESOLVE_IN_ROOT), also while a container replaces directories by
// links. Mount points are not crossed. The error is bounded.ErrNotRegular for other files, which are not opened:
// opening a device may have side effects, and opening a FIFO may block.
func OpenInside(root, path string) (*os.File, error) {
	base, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(base)
	found, err := unix.Openat2(base, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil { // also EAGAIN, if a component was renamed meanwhile
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "open", Path: path, Err: bounded.ErrNotRegular}
	}
	// Open the file that was checked: the path may name another one by now.
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", found), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		if of, ok := errors.AsType[*os.PathError](err); ok {
			of.Path = path
		}
		return nil, err
	}
	return f, nil
}
