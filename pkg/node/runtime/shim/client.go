package shim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// Client sends requests to the shim that listens on a socket.
type Client struct{ Socket string }

// Dial connects to the shim. The path may be longer than the 108 bytes of a socket address.
func (c Client) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	if len(c.Socket) < 100 {
		return d.DialContext(ctx, "unix", c.Socket)
	}
	dir, err := os.Open(filepath.Dir(c.Socket))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(c.Socket)))
}

// open sends a request and reads the response. When ctx is done, it closes the connection and returns ctx's error.
func (c Client) open(ctx context.Context, req Request) (net.Conn, Response, func(), error) {
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, Response{}, nil, cmp.Or(ctx.Err(), err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	end := func() {
		stop()
		conn.Close()
	}
	var res Response
	if err := WriteHead(conn, req); err != nil {
		end()
		return nil, res, nil, fmt.Errorf("shim %s: %w", req.Op, cmp.Or(ctx.Err(), err))
	}
	if err := ReadHead(conn, &res); err != nil {
		end()
		return nil, res, nil, fmt.Errorf("shim %s: %w", req.Op, cmp.Or(ctx.Err(), err))
	}
	if err := res.err(); err != nil {
		end()
		return nil, res, nil, err
	}
	return conn, res, end, nil
}

func (r Response) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Code == CodeNotFound:
		return ErrNotFound
	case r.Code == CodeNotRunning:
		return ErrNotRunning
	}
	return errors.New(r.Error)
}

// Call sends a request and returns the response.
func (c Client) Call(ctx context.Context, req Request) (Response, error) {
	_, res, end, err := c.open(ctx, req)
	if err == nil {
		end()
	}
	return res, err
}

// Watch calls f for each container, then ready, then f for each change, until ctx is done or the shim exits.
func (c Client) Watch(ctx context.Context, ready func(), f func(Status)) error {
	conn, _, end, err := c.open(ctx, Request{Op: Watch})
	if err != nil {
		return err
	}
	defer end()
	for {
		var s Status
		if err := ReadHead(conn, &s); err != nil {
			return err
		}
		if s.ID == "" {
			ready()
			continue
		}
		f(s)
	}
}

// Size is a terminal's size in cells.
type Size struct{ Width, Height uint16 }

// Stream runs an Exec or Attach: it copies the streams until the process exits, and returns the exit code. When ctx
// is done, it closes the session, which kills the process of an exec. A nil stream is not connected.
func (c Client) Stream(ctx context.Context, req Request, in io.Reader, out, errs io.Writer,
	resize <-chan Size) (int, error) {
	req.In, req.Out, req.Err = in != nil, out != nil, errs != nil
	conn, _, end, err := c.open(ctx, req)
	if err != nil {
		return 0, err
	}
	defer end()
	w := &lockedWriter{w: conn}
	done := make(chan struct{})
	defer close(done)
	if in != nil {
		// Read may block after the session has ended, until the caller closes the reader.
		go func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := in.Read(buf)
				if n > 0 && WriteFrame(w, FrameIn, buf[:n]) != nil {
					return
				}
				if err != nil {
					_ = WriteFrame(w, FrameIn, nil)
					return
				}
			}
		}()
	}
	if resize != nil {
		go func() {
			for {
				select {
				case size, ok := <-resize:
					if !ok {
						return
					}
					data := binary.BigEndian.AppendUint16(nil, size.Width)
					if WriteFrame(w, FrameResize, binary.BigEndian.AppendUint16(data, size.Height)) != nil {
						return
					}
				case <-done:
					return
				}
			}
		}()
	}
	for {
		kind, data, err := ReadFrame(conn)
		if err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return 0, fmt.Errorf("the connection to the shim ended during the session: %w", err)
		}
		switch kind {
		case FrameOut:
			if out != nil {
				_, err = out.Write(data)
			}
		case FrameErr:
			if errs != nil {
				_, err = errs.Write(data)
			}
		case FrameExitCode:
			if len(data) == 4 {
				return int(int32(binary.BigEndian.Uint32(data))), nil
			}
			err = errors.New("a broken exit frame")
		}
		if err != nil {
			return 0, err
		}
	}
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
