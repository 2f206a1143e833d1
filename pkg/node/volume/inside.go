package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// OpenInside opens a regular file inside a directory that containers can write to. Symbolic links are followed as if
// the directory were the root of the file system (openat2(2), RESOLVE_IN_ROOT), so none leads out of it, however fast
// directories are replaced by links; another file system mounted in it is not entered. What is not a regular file is
// bounded.ErrNotRegular and was not opened: opening a device may have effects, and opening a FIFO may wait.
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
	if err != nil { // also EAGAIN, when something was renamed on the way
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
	// the file that was looked at, whatever has its name now
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", found), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		var of *os.PathError
		if errors.As(err, &of) {
			of.Path = path
		}
		return nil, err
	}
	return f, nil
}
