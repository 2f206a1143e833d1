package runtimetest

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func execute(t *testing.T, p *pod) {
	id := p.run(p.spec("a", "sleep", "100"))
	var out, errs bytes.Buffer
	code, err := p.Exec(p.ctx, id, runtime.Exec{
		Command: []string{"sh", "-c", "echo out; echo err >&2; exit 4"}, Streams: runtime.Streams{Out: &out, Err: &errs},
	})
	require.NoError(t, err)
	require.Equal(t, 4, code)
	require.Equal(t, "out\n", out.String())
	require.Equal(t, "err\n", errs.String())

	big := strings.Repeat("0123456789abcdef", 1<<16)
	out.Reset()
	code, err = p.Exec(p.ctx, id, runtime.Exec{
		Command: []string{"cat"}, Streams: runtime.Streams{In: strings.NewReader(big), Out: &out},
	})
	require.NoError(t, err)
	require.Zero(t, code)
	require.Equal(t, len(big), out.Len())
	require.Equal(t, big, out.String())

	_, err = p.Exec(p.ctx, id, runtime.Exec{Command: []string{"/no/such"}, Streams: runtime.Streams{Out: &out}})
	require.ErrorContains(t, err, "/no/such")

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			code, err := p.Exec(p.ctx, id, runtime.Exec{Command: []string{"true"}})
			if err != nil || code != 0 {
				t.Errorf("exec: %d %v", code, err)
			}
		})
	}
	all.Wait()
	require.NoError(t, p.Signal(p.ctx, id, syscall.SIGKILL, false))
	p.until(id, exited)
	_, err = p.Exec(p.ctx, id, runtime.Exec{Command: []string{"true"}})
	require.ErrorIs(t, err, runtime.ErrNotRunning)
}

func executeKilled(t *testing.T, p *pod) {
	id := p.run(p.spec("a", "sleep", "100"))
	ctx, cancel := context.WithTimeout(p.ctx, 300*time.Millisecond)
	defer cancel()
	_, err := p.Exec(ctx, id, runtime.Exec{Command: []string{"sleep", "50"}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c, err := p.Get(p.ctx, id)
	require.NoError(t, err)
	require.Equal(t, runtime.Running, c.State)
	require.Eventually(t, func() bool {
		s, err := p.Stats(p.ctx, id)
		return err == nil && s.Pids == 1
	}, patience, 5*time.Millisecond)
}

func attach(t *testing.T, p *pod) {
	s := p.spec("a", "cat")
	s.Stdin, s.StdinOnce = true, true
	id := p.run(s)
	var out bytes.Buffer
	require.NoError(t, p.Attach(p.ctx, id, runtime.Streams{In: strings.NewReader("hello\nyou\n"), Out: &out}))
	require.Equal(t, "hello\nyou\n", out.String())
	require.Zero(t, p.until(id, exited).ExitCode)
	require.Equal(t, "hello\nyou\n", p.text(id))
}

// Without StdinOnce, stdin stays open after the client disconnects.
func stdin(t *testing.T, p *pod) {
	s := p.spec("a", "cat")
	s.Stdin = true
	id := p.run(s)
	for _, text := range []string{"one\n", "two\n"} {
		ctx, cancel := context.WithCancel(p.ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = p.Attach(ctx, id, runtime.Streams{In: strings.NewReader(text)})
		}()
		p.shows(id, text)
		cancel()
		<-done
	}
	c, err := p.Get(p.ctx, id)
	require.NoError(t, err)
	require.Equal(t, runtime.Running, c.State)
}
