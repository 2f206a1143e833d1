package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockFile contains the pid of the process that uses the data directory. That process keeps it locked.
const lockFile = "coracle.pid"

type errLocked struct {
	dir string
	pid int
}

func (e errLocked) Error() string {
	return fmt.Sprintf("%s is in use by the Coracle process %d: stop it with `coracle stop`, or choose another --data-dir",
		e.dir, e.pid)
}

// openLock opens a lock file. It is the first file that a command opens in the data directory.
func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.EROFS) {
		err = fmt.Errorf("%w: if an error of the disk caused that, the kernel's log has it (dmesg): repair the disk, and "+
			"mount it writable (mount -o remount,rw), then try again", err)
	}
	return f, err
}

// lock locks the data directory until the returned file is closed or the process ends.
func lock(dir string) (*os.File, error) {
	f, err := openLock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	err = claim(f, dir)
	if err == nil {
		err = writePID(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func claim(f *os.File, dir string) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		text := make([]byte, 10)
		n, _ := f.ReadAt(text, 0)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
		return errLocked{dir, pid}
	}
	return err
}

func writePID(f *os.File) error {
	_, err := f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0)
	return err
}

// holder returns the pid of the process that uses the data directory, or 0 if there is none.
func holder(dir string) int { return holderOf(dir, lockFile) }

// holderOf returns the pid of the process that holds a lock file of the data directory, or 0 if there is none.
func holderOf(dir, name string) int {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	defer f.Close()
	var locked errLocked
	if errors.As(claim(f, dir), &locked) {
		return locked.pid
	}
	return 0
}
