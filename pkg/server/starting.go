package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// startLock is a file in a data directory. `coracle start` locks it exclusively, with its pid in it, `coracle stop` and
// `delete` share it. The server's own lock (lockFile) comes later: without this one, a stop or delete in the first
// moments of a start would find nothing, and then a cluster would run.
const startLock = "start.lock"

// lockForStart locks the data directory, which must exist, against other commands. It calls waits if it has to wait for
// one of them.
func lockForStart(ctx context.Context, dir string, waits func()) (release func(), err error) {
	for {
		f, err := openLock(filepath.Join(dir, startLock))
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			waits()
			err = flock(ctx, f)
		}
		if err == nil && current(f) {
			err = writePID(f)
			return func() { _ = f.Close() }, err
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		_ = f.Close() // a deletion has removed it: lock the new one
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
}

// flock locks a file. If ctx ends first, the file stays open until the lock is granted: the system call cannot be
// interrupted.
func flock(ctx context.Context, f *os.File) error {
	held, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return err
	}
	granted := make(chan error, 1)
	go func() {
		granted <- unix.Flock(held, unix.LOCK_EX)
		_ = unix.Close(held)
	}()
	select {
	case err := <-granted:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// current reports whether an open file is still the one at its path.
func current(f *os.File) bool {
	mine, err := f.Stat()
	there, statErr := os.Stat(f.Name())
	return err == nil && statErr == nil && os.SameFile(mine, there)
}

// endStart ends a start that is under way and keeps others from beginning until release. It does nothing if there is no
// data directory.
func endStart(ctx context.Context, dir string, say func(format string, args ...any)) (release func(), err error) {
	for {
		f, err := openLock(filepath.Join(dir, startLock))
		if errors.Is(err, fs.ErrNotExist) {
			return func() {}, nil
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		if pid := holderOf(dir, startLock); pid != 0 {
			say("ending process %d, which starts the cluster", pid)
		}
		_, _, err = ending{dir: dir, lock: startLock, graceful: stopPatience, killed: killPatience, say: say}.run(ctx)
		if err != nil {
			return nil, err
		}
	}
}
