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

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

// watch is an inotify(7) watch of the folder. Unlike portable libraries it reports when a writer closes a file, so
// that a manifest written in pieces is read when complete.
type watch struct {
	file    *os.File          // nil if the folder could not be watched
	root    int32             // the folder's watch descriptor
	changed map[string]uint32 // the last event, by file
	all     bool              // events were lost
	// moved holds files that were renamed to their backup names. leaving is a rename whose new name was not read yet.
	moved   map[string]bool
	leaving struct {
		cookie uint32
		name   string
	}
	// targets holds the watch descriptors of subfolders that links lead through.
	targets map[string]int32
}

const watched = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// unwatched returns a watch that reports nothing, used while the folder cannot be watched.
func unwatched() *watch {
	return &watch{changed: map[string]uint32{}, moved: map[string]bool{}, all: true}
}

// open creates the folder if necessary, and watches it.
func (f *folder) open() (*watch, error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("all inotify instances of this user are in use, maybe by containers: raise the sysctl "+
			"fs.inotify.max_user_instances: %w", err)
	}
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	root, err := unix.InotifyAddWatch(fd, f.dir, watched)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", f.dir, err), file.Close())
	}
	return &watch{
		file:    file,
		root:    int32(root),
		changed: map[string]uint32{},
		moved:   map[string]bool{},
		all:     true,
		targets: map[string]int32{},
	}, nil
}

// also watches a subfolder. Any event in it causes the links to be read again.
func (w *watch) also(dir string) error {
	return w.control(func(fd int) error {
		at, err := unix.InotifyAddWatch(fd, dir, watched) // returns the same descriptor for a watched folder
		if err != nil {
			return fmt.Errorf("watch %s, the folder of a link's target: %w", dir, err)
		}
		if int32(at) != w.root {
			w.targets[dir] = int32(at)
		}
		return nil
	})
}

// keep removes the watches of all subfolders except dirs.
func (w *watch) keep(dirs map[string]bool) {
	_ = w.control(func(fd int) error {
		for dir, at := range w.targets {
			if !dirs[dir] {
				delete(w.targets, dir)
				_, _ = unix.InotifyRmWatch(fd, uint32(at)) // the kernel has removed the watches of deleted folders
			}
		}
		return nil
	})
}

// control calls do with the inotify descriptor, unless the folder is unwatched or the watch has ended.
func (w *watch) control(do func(fd int) error) error {
	if w.file == nil {
		return nil
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return nil
	}
	var failed error
	_ = raw.Control(func(fd uintptr) { failed = do(int(fd)) })
	return failed
}

// take returns the files that changed since the last call. all means that any file may have.
func (w *watch) take() (changed map[string]uint32, all bool) {
	changed, all = w.changed, w.all
	w.changed, w.all = map[string]uint32{}, false
	return changed, all
}

// takeMoved returns the files that were renamed to their backup names since the last call.
func (w *watch) takeMoved() map[string]bool {
	moved := w.moved
	w.moved = map[string]bool{}
	return moved
}

// The delays after the folder could not be watched or read.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
	// The kernel reports a close a moment before it allows a lease, or many seconds before if the file system first
	// writes the file to the disk. So a file that seems open is read up to rereads times, at first after reread, with
	// doubling delay.
	rereads = 11
	reread  = 20 * time.Millisecond
)

// follow calls read after each change of the folder until ctx is done. A folder that is gone counts as empty and is
// created again. While it cannot be watched, it is read at each attempt.
func (f *folder) follow(ctx context.Context, log *slog.Logger, read func()) {
	again := backoff.Backoff{First: retryFirst, Most: retryMost}
	for said := ""; ; {
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
				f.watch, said = w, ""
				again.Reset()
				break
			}
			if said != err.Error() {
				said = err.Error()
				log.Error("could not watch the folder of static pods, retrying", "folder", f.dir, "error", err)
			}
			f.watch = unwatched()
			read()
			again.Wait(ctx)
		}
		read()
	}
}

// events calls read after each batch of events. It returns when the watch has ended.
func (f *folder) events(read func()) {
	buffer := make([]byte, 64<<10)
	for {
		var retry time.Time
		switch {
		case f.watch.leaving.name != "":
			retry = time.Now().Add(reread)
		case f.again > 0:
			retry = time.Now().Add(reread << (rereads - f.again))
		case f.failed, f.unread:
			retry = time.Now().Add(retryFirst)
		}
		_ = f.watch.file.SetReadDeadline(retry)
		n, err := f.watch.file.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			f.all = f.all || f.again > 0 || f.failed
			f.again, f.watch.leaving.name = max(f.again-1, 0), ""
			read()
			continue
		}
		if err != nil {
			return
		}
		ended := f.watch.note(buffer[:n])
		if ended || f.watch.leaving.name == "" {
			read()
		}
		if ended {
			return
		}
	}
}

// note records a batch of events. It returns true if the folder itself is gone. Events of subfolders are not
// recorded, because links are read each time.
func (w *watch) note(batch []byte) (ended bool) {
	for len(batch) >= unix.SizeofInotifyEvent {
		of, mask := int32(binary.NativeEndian.Uint32(batch)), binary.NativeEndian.Uint32(batch[4:])
		cookie, size := binary.NativeEndian.Uint32(batch[8:]), int(binary.NativeEndian.Uint32(batch[12:]))
		if size > len(batch)-unix.SizeofInotifyEvent {
			break // never: the kernel writes whole events
		}
		name := strings.TrimRight(string(batch[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		batch = batch[unix.SizeofInotifyEvent+size:]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			w.all = true
		case of != w.root:
		case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
			ended = true
		case mask&unix.IN_MOVED_TO != 0 && cookie == w.leaving.cookie && name == backupOf(w.leaving.name):
			delete(w.changed, w.leaving.name)
			delete(w.changed, name)
			w.moved[w.leaving.name], w.leaving.name = true, ""
		default:
			w.changed[name], w.leaving.name = mask, ""
			if mask&unix.IN_MOVED_FROM != 0 {
				w.leaving.cookie, w.leaving.name = cookie, name
			}
		}
	}
	return ended
}

// written reports whether a process has the file open for writing: then the kernel refuses a read lease with EAGAIN.
// The event for the last close may precede that by a moment. File systems without leases refuse with another error.
func written(file *os.File) bool {
	_, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}
