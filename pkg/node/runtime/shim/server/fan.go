package server

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// waitFrames is how many writes a client may be behind before the container's output waits for it.
	waitFrames = 8
	// tailFrames is how many more writes a client receives after the process has exited. A client that is further
	// behind is disconnected.
	tailFrames = maxPipe/outputSize + 8
	outputSize = 16 << 10
	maxPipe    = 1 << 20 // bytes of the largest pipe that a container can make (fs.pipe-max-size)

	// slowClient is how long an attached client may receive nothing before it is disconnected. The kernel wakes a
	// writer to a slow connection only when a third of its buffer is free, which takes seconds.
	slowClient = 10 * time.Second
	forgiven   = time.Minute
)

// fan writes output to the log, and then to all attached clients. While the process runs, its output waits for slow
// clients, as a pipe does. A client that takes nothing for slowClient is disconnected; the next ones that do so within
// forgiven have half that time each, down to a sixteenth. After the exit nothing waits for clients: they receive the
// rest from their queues.
type fan struct {
	log    io.Writer
	exited chan struct{} // closed when the process has exited

	// Only Write uses these: the number of clients that it disconnected, and when it did so last.
	cuts int
	last time.Time

	mu      sync.Mutex
	clients []*client
}

type client struct {
	w      io.WriteCloser
	frames chan []byte
	room   chan struct{} // holds an element per queued write, but for those after the exit
	stop   chan struct{} // closed by flush
	done   chan struct{} // closed when send has returned
}

func (f *fan) add(w io.WriteCloser) *client {
	c := &client{
		w:      w,
		frames: make(chan []byte, waitFrames+tailFrames),
		room:   make(chan struct{}, waitFrames),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	go c.send()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clients = append(f.clients, c)
	return c
}

// flush removes a client after all of its queue is written, or its writer has failed. It may be nil.
func (f *fan) flush(c *client) {
	if c == nil {
		return
	}
	f.remove(c)
	close(c.stop)
	<-c.done
}

func (f *fan) remove(c *client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clients = slices.DeleteFunc(slices.Clone(f.clients), func(o *client) bool { return o == c })
}

func (f *fan) Write(p []byte) (int, error) {
	_, _ = f.log.Write(p)
	f.mu.Lock()
	clients := f.clients
	f.mu.Unlock()
	if len(clients) == 0 {
		return len(p), nil
	}
	shared := slices.Clone(p)
	for _, c := range clients {
		taken := f.wait(c)
		if taken {
			select {
			case c.frames <- shared:
			default: // only after the exit
				taken = false
			}
		}
		if !taken {
			f.remove(c)
			_ = c.w.Close()
		}
	}
	return len(p), nil
}

// wait waits until a client has room for another write. It returns false if the client is gone or stalled.
func (f *fan) wait(c *client) bool {
	select {
	case c.room <- struct{}{}:
		return true
	default:
	}
	if time.Since(f.last) > forgiven {
		f.cuts = 0
	}
	late := time.NewTimer(slowClient >> min(f.cuts, 4))
	defer late.Stop()
	select {
	case c.room <- struct{}{}:
		return true
	case <-f.exited:
		return true
	case <-c.done: // its own deadline may end first
	case <-late.C:
	}
	f.cuts, f.last = f.cuts+1, time.Now()
	return false
}

// send writes the queue until the writer fails, or flush was called and the queue is empty.
func (c *client) send() {
	defer close(c.done)
	for {
		select {
		case p := <-c.frames:
			if _, err := c.w.Write(p); err != nil {
				return
			}
			select {
			case <-c.room:
			default:
			}
		case <-c.stop:
			if len(c.frames) == 0 {
				return
			}
		}
	}
}

// copyStream copies a pipe or terminal until it ends. After its read deadline it copies only what is there: the process
// has exited, and other processes hold the stream open.
func copyStream(from *os.File, to io.Writer) {
	buf := make([]byte, outputSize)
	for {
		n, err := from.Read(buf)
		_, _ = to.Write(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil { // EOF, or EIO when no process has the terminal open
			return
		}
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < maxPipe; {
		n := 0
		// Control ignores the deadline. The descriptor does not block.
		if raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) }) != nil || n <= 0 {
			return
		}
		_, _ = to.Write(buf[:n])
		total += n
	}
}
