package fake

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func (r *Runtime) Exec(ctx context.Context, id string, e runtime.Exec) (int, error) {
	c, err := r.running(id)
	if err != nil {
		return 0, err
	}
	program, err := r.program(e.Command)
	if err != nil {
		return 0, err
	}
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &Process{
		Args: e.Command, Env: c.spec.Env, Spec: c.spec, In: e.Streams.In, Out: e.Streams.Out, Err: e.Streams.Err,
		Signals: make(chan syscall.Signal), OOM: func() {},
	}
	if p.In == nil {
		p.In = eof{}
	}
	if p.Out == nil {
		p.Out = io.Discard
	}
	if e.TTY {
		p.Err = p.Out
	}
	if p.Err == nil {
		p.Err = io.Discard
	}
	code := make(chan int, 1)
	go func() { code <- program(own, p) }()
	select {
	case n := <-code:
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return n, nil
	case <-ctx.Done():
		<-code
		return 0, ctx.Err()
	case <-c.done:
		cancel()
		<-code
		return 137, nil
	}
}

func (r *Runtime) Attach(ctx context.Context, id string, s runtime.Streams) error {
	c, err := r.running(id)
	if err != nil {
		return err
	}
	if s.Out != nil {
		defer c.out.add(s.Out)()
	}
	if s.Err != nil && !c.spec.TTY {
		defer c.errs.add(s.Err)()
	}
	if s.In != nil && c.spec.Stdin {
		go func() {
			_, _ = io.Copy(c.in, s.In)
			if c.spec.StdinOnce {
				c.in.Close()
			}
		}()
	}
	select {
	case <-ctx.Done():
	case <-c.done:
	}
	return nil
}

func (r *Runtime) Changes(ctx context.Context) <-chan string { return r.changes.Watch(ctx) }

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

type fan struct {
	mu  sync.Mutex
	to  map[int]io.Writer
	num int
}

func (f *fan) add(w io.Writer) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to == nil {
		f.to = map[int]io.Writer{}
	}
	f.num++
	n := f.num
	f.to[n] = w
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.to, n)
	}
}

func (f *fan) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.to {
		_, _ = w.Write(p)
	}
	return len(p), nil
}

// input is a container's stdin. It returns what attached clients write, until it is closed.
type input struct {
	mu     sync.Mutex
	cond   *sync.Cond
	data   []byte
	closed bool
}

func newInput(open bool) *input {
	i := &input{closed: !open}
	i.cond = sync.NewCond(&i.mu)
	return i
}

func (i *input) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.data) == 0 {
		if i.closed {
			return 0, io.EOF
		}
		i.cond.Wait()
	}
	n := copy(p, i.data)
	i.data = i.data[n:]
	return n, nil
}

func (i *input) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return 0, fmt.Errorf("stdin is closed: %w", io.ErrClosedPipe)
	}
	i.data = append(i.data, p...)
	i.cond.Broadcast()
	return len(p), nil
}

func (i *input) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.cond.Broadcast()
	return nil
}
