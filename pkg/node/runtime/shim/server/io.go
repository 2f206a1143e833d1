//go:build cgo

package server

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// drainTime limits reading output after the process has exited while other processes hold its streams open.
const drainTime = time.Second

// procIO is the shim's end of a process's streams: pipes, or a terminal.
type procIO struct {
	tty      bool
	in       *os.File // nil if the process has no input
	out, err *os.File
	theirs   []*os.File
	console  *os.File // receives the terminal
	copies   sync.WaitGroup
	closeIn  sync.Once
}

func newIO(p *libcontainer.Process, tty, in, out, errs bool) (*procIO, error) {
	i := &procIO{tty: tty}
	if tty {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		i.console = os.NewFile(uintptr(pair[0]), "console")
		p.ConsoleSocket = os.NewFile(uintptr(pair[1]), "console")
		i.theirs = append(i.theirs, p.ConsoleSocket)
		return i, nil
	}
	var err error
	pipe := func(want bool) (r, w *os.File) {
		if !want || err != nil {
			return nil, nil
		}
		r, w, err = os.Pipe()
		return r, w
	}
	if r, w := pipe(in); r != nil {
		p.Stdin, i.in = r, w
		i.theirs = append(i.theirs, r)
	}
	if r, w := pipe(out); r != nil {
		p.Stdout, i.out = w, r
		i.theirs = append(i.theirs, w)
	}
	if r, w := pipe(errs); r != nil {
		p.Stderr, i.err = w, r
		i.theirs = append(i.theirs, w)
	}
	if err != nil {
		i.abort()
	}
	return i, err
}

// give changes the owner of the process's ends of the streams to user, so that a process in a user namespace can
// reopen them (/dev/stdout) and change their owner.
func (i *procIO) give(user uint32) error {
	for _, f := range i.theirs {
		if err := f.Chown(int(user), int(user)); err != nil {
			return err
		}
	}
	return nil
}

// started is called after the process has got its ends of the streams.
func (i *procIO) started() error {
	defer func() {
		for _, f := range i.theirs {
			f.Close()
		}
		i.theirs = nil
	}()
	if !i.tty {
		return nil
	}
	defer i.console.Close()
	master, err := receiveFile(i.console)
	if err != nil {
		return err
	}
	i.in, i.out = master, master
	return nil
}

func (i *procIO) abort() {
	for _, f := range append(i.theirs, i.in, i.out, i.err, i.console) {
		if f != nil {
			f.Close()
		}
	}
}

// copyOut copies the process's output until it ends.
func (i *procIO) copyOut(out, errs io.Writer) {
	for from, to := range map[*os.File]io.Writer{i.out: out, i.err: errs} {
		if from == nil {
			continue
		}
		i.copies.Go(func() { copyStream(from, to) })
	}
}

func (i *procIO) drain() {
	timer := time.AfterFunc(drainTime, func() {
		for _, f := range []*os.File{i.out, i.err} {
			if f != nil {
				_ = f.SetReadDeadline(time.Now())
			}
		}
	})
	i.copies.Wait()
	timer.Stop()
	i.endInput()
	i.abort()
}

// endInput closes stdin. A terminal stays open.
func (i *procIO) endInput() {
	i.closeIn.Do(func() {
		if i.in != nil && !i.tty {
			i.in.Close()
		}
	})
}

func (i *procIO) resize(width, height uint16) {
	if i.tty && i.out != nil {
		if raw, err := i.out.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
			})
		}
	}
}

func receiveFile(socket *os.File) (*os.File, error) {
	data, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("the container sent no terminal"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("the container sent no terminal"), err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil { // for read deadlines
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
