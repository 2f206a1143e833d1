package static

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watch is an inotify(7) watch of the folder. Unlike portable libraries it says when a file's writer has closed it, so that a manifest that is
// written in pieces is read when it is complete.
type watch struct {
	file    *os.File // nil if the folder could not be watched
	changed map[string]bool
	all     bool // events were lost
}

const watched = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// unwatched stands for a watch that could not be made.
func unwatched() *watch { return &watch{changed: map[string]bool{}, all: true} }

// open makes the folder if it is missing, and watches it.
func (f *folder) open() (*watch, error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("all inotify instances of this user are taken, also by containers: raise the sysctl fs.inotify.max_user_instances: %w", err)
	}
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, f.dir, watched); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", f.dir, err), file.Close())
	}
	return &watch{file: file, changed: map[string]bool{}, all: true}, nil
}

// take returns the files that changed since the last call, or that all may have.
func (w *watch) take() (changed map[string]bool, all bool) {
	changed, all = w.changed, w.all
	w.changed, w.all = map[string]bool{}, false
	return changed, all
}

// The pauses after the folder could not be watched, or read.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// follow calls read after each change of the folder until ctx is done. A folder that is removed or renamed has no manifests; it is made again. One that
// cannot be watched is read whenever that is tried again.
func (f *folder) follow(ctx context.Context, log *slog.Logger, read func()) {
	for wait, said := retryFirst, ""; ; {
		if file := f.watch.file; file != nil {
			end := context.AfterFunc(ctx, func() { _ = file.Close() })
			f.events(read)
			end()
			_ = file.Close()
		}
		for {
			if ctx.Err() != nil {
				return
			}
			w, err := f.open()
			if err == nil {
				f.watch, wait, said = w, retryFirst, ""
				break
			}
			if said != err.Error() {
				said = err.Error()
				log.Error("could not watch the folder of static pods, retrying", "folder", f.dir, "error", err)
			}
			f.watch = unwatched()
			read()
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				wait = min(2*wait, retryMost)
			}
		}
		read()
	}
}

// events calls read after each batch of events, and returns when the watch has ended.
func (f *folder) events(read func()) {
	buffer := make([]byte, 64<<10)
	for {
		var retry time.Time
		if f.failed {
			retry = time.Now().Add(retryFirst)
		}
		_ = f.watch.file.SetReadDeadline(retry)
		n, err := f.watch.file.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			f.watch.all = true
			read()
			continue
		}
		if err != nil {
			return
		}
		ended := f.watch.note(buffer[:n])
		read()
		if ended {
			return
		}
	}
}

// note records a batch of events. It returns true if the folder itself is gone.
func (w *watch) note(batch []byte) (ended bool) {
	for len(batch) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(batch[4:]), int(binary.NativeEndian.Uint32(batch[12:]))
		if size > len(batch)-unix.SizeofInotifyEvent {
			break // the kernel writes whole events
		}
		name := strings.TrimRight(string(batch[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		batch = batch[unix.SizeofInotifyEvent+size:]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			w.all = true
		case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
			ended = true
		default:
			w.changed[name] = true
		}
	}
	return ended
}

// written reports whether a process has the file open for writing: the kernel grants a lease for reading only if none has. The close of the last
// such process is an event. Filesystems without leases grant none, and their files are read when they change.
func written(file *os.File) bool {
	_, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}
