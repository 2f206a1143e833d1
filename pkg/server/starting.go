package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// startLock is a file in a data directory that `coracle start`, `stop` and `delete` lock while they run. It
// contains the pid of the command and what it does. The server locks lockFile only later: without startLock, a stop
// or delete in the first moments of a start would find no process, and the cluster would then run.
const (
	startLock = "start.lock"
	toStart   = "start"
	toEnd     = "end"
)

// errNoDataDir means that the data directory does not exist, so that it cannot be locked.
var errNoDataDir = errors.New("the data directory does not exist")

// lockStart locks a data directory against other commands. While another command has the lock, it calls held once,
// with that command's pid and action, and waits. release removes the file and unlocks it.
func lockStart(ctx context.Context, dir, does string, held func(pid int, does string)) (release func(), err error) {
	path := filepath.Join(dir, startLock)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errNoDataDir
		}
		if err != nil {
			return nil, err
		}
		if err := flockOrWait(ctx, f, held); err != nil {
			return nil, err
		}
		// The previous holder removes the file before it unlocks it; then open the new file.
		mine, err := f.Stat()
		if there, statErr := os.Stat(path); err == nil && statErr == nil && os.SameFile(mine, there) {
			_, err = f.WriteAt(fmt.Appendf(nil, "%10d %-5s\n", os.Getpid(), does), 0)
			return func() { _ = errors.Join(os.Remove(path), f.Close()) }, err
		}
		_ = f.Close()
	}
}

// flockOrWait locks an open file. On an error it closes the file, after ctx's end only once the pending lock is
// granted.
func flockOrWait(ctx context.Context, f *os.File, held func(pid int, does string)) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return errors.Join(err, f.Close())
	}
	text := make([]byte, 20)
	n, _ := f.ReadAt(text, 0)
	pid, does, _ := strings.Cut(strings.TrimSpace(string(text[:n])), " ")
	number, _ := strconv.Atoi(pid)
	held(number, does)
	granted := make(chan error, 1)
	go func() { granted <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-granted:
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return nil
	case <-ctx.Done():
		go func() { <-granted; _ = f.Close() }()
		return ctx.Err()
	}
}

// endStart ends a start in progress and locks the data directory. If there is no data directory, it does nothing.
func endStart(ctx context.Context, dir string, say func(format string, args ...any)) (release func(), err error) {
	var force *time.Timer
	release, err = lockStart(ctx, dir, toEnd, func(pid int, does string) {
		if holds, err := hasOpen(pid, filepath.Join(dir, startLock)); err != nil || !holds || does != toStart {
			say("waiting for process %d, which ends the cluster", pid)
			return
		}
		say("ending process %d, which starts the cluster", pid)
		_ = unix.Kill(pid, unix.SIGTERM)
		force = time.AfterFunc(stopPatience, func() {
			if holds, err := hasOpen(pid, filepath.Join(dir, startLock)); err == nil && holds {
				_ = unix.Kill(pid, unix.SIGKILL) // its background process has a lock of its own, and is ended by that
			}
		})
	})
	if force != nil {
		force.Stop()
	}
	if errors.Is(err, errNoDataDir) {
		return func() {}, nil
	}
	return release, err
}
