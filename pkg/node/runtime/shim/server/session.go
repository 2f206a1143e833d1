//go:build cgo

package server

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// maxSessions limits the concurrent execs and attaches of a container.
const maxSessions = 64

// session serves an exec or attach. It returns an error only if nothing was written to conn.
func (c *container) session(conn net.Conn, req shim.Request) error {
	defer c.sessions.Add(-1)
	if c.sessions.Add(1) > maxSessions {
		return fmt.Errorf("the container has %d sessions already: end one of them", maxSessions)
	}
	if req.Op == shim.Exec {
		return c.exec(conn, req)
	}
	return c.attach(conn, req)
}

type session struct {
	conn net.Conn
	mu   sync.Mutex
}

func (s *session) write(kind byte, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return shim.WriteFrame(s.conn, kind, p)
}

func (s *session) exit(code int) {
	_ = s.write(shim.FrameExitCode, binary.BigEndian.AppendUint32(nil, uint32(int32(code))))
}

// frames passes the client's frames to the process until the client disconnects.
func (s *session) frames(i *procIO, in io.Writer, endIn func()) {
	for {
		kind, data, err := shim.ReadFrame(s.conn)
		if err != nil {
			return
		}
		switch {
		case kind == shim.FrameIn && in == nil:
		case kind == shim.FrameIn && len(data) == 0:
			endIn()
		case kind == shim.FrameIn:
			if _, err := in.Write(data); err != nil {
				in = nil // the process has closed its stdin; its output continues
			}
		case kind == shim.FrameResize && len(data) == 4:
			i.resize(binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:]))
		}
	}
}

type sessionWriter struct {
	*session
	kind  byte
	limit time.Duration
}

func (w sessionWriter) Close() error { return w.conn.Close() }

func (w sessionWriter) Write(p []byte) (int, error) {
	if w.limit > 0 {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.limit))
	}
	if err := w.write(w.kind, p); err != nil {
		w.conn.Close()
		return 0, err
	}
	return len(p), nil
}

// attach connects the client to the streams of the first process.
func (c *container) attach(conn net.Conn, req shim.Request) error {
	s := &session{conn: conn}
	if err := shim.WriteHead(conn, shim.Response{}); err != nil {
		return nil
	}
	var out, errs *client
	if req.Out {
		out = c.out.add(sessionWriter{s, shim.FrameOut, slowClient})
	}
	if req.Err && !c.bundle.TTY {
		errs = c.errs.add(sessionWriter{s, shim.FrameErr, slowClient})
	}
	flush := func() {
		c.out.flush(out)
		c.errs.flush(errs)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		var in io.Writer
		if c.bundle.Stdin && req.In && c.io.in != nil {
			in = c.io.in
		}
		endIn := func() {
			if c.bundle.StdinOnce {
				c.io.endInput()
			}
		}
		s.frames(c.io, in, endIn)
		if in != nil {
			endIn()
		}
	}()
	select {
	case <-gone:
		conn.Close()
		flush()
	case <-c.done:
		flush()
		s.exit(c.snapshot().ExitCode)
	}
	return nil
}

// exec runs a process until the client disconnects. It returns an error only if nothing was written to conn.
func (c *container) exec(conn net.Conn, req shim.Request) error {
	spec := c.process
	spec.Args, spec.Terminal, spec.ConsoleSize = req.Args, req.TTY, nil
	if req.TTY {
		spec.Env = append(slices.Clone(spec.Env), "TERM=xterm")
	}
	p, err := newProcess(&spec)
	if err != nil {
		return err
	}
	i, err := c.newIO(p, req.TTY, req.In, req.Out, req.Err)
	if err != nil {
		return err
	}
	pid := 0
	err = c.server.reaper.start(func() (int, error) {
		err := c.c.Run(p)
		if err == nil {
			pid, err = p.Pid()
		}
		return pid, err
	})
	if err != nil {
		i.abort()
		select {
		case <-c.done:
			return shim.ErrNotRunning
		default:
			return plainError(plain(err))
		}
	}
	s := &session{conn: conn}
	kill := sync.OnceFunc(func() { _ = p.Signal(unix.SIGKILL) })
	err = i.started()
	if err == nil {
		err = shim.WriteHead(conn, shim.Response{})
	}
	if err != nil {
		kill()
	} else {
		i.copyOut(sessionWriter{s, shim.FrameOut, 0}, sessionWriter{s, shim.FrameErr, 0})
		go func() {
			var in io.Writer
			if i.in != nil {
				in = i.in
			}
			s.frames(i, in, i.endInput)
			kill()
		}()
	}
	state, _ := p.Wait()
	c.server.reaper.release(pid)
	i.drain()
	code, _ := exitOf(state)
	s.exit(code)
	return nil
}

type plainError string

func (e plainError) Error() string { return string(e) }
