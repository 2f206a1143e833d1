package server

import (
	"bytes"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stalled is a client that receives nothing until resume is closed.
type stalled struct {
	resume, closed chan struct{}
	once           sync.Once
	got            bytes.Buffer
}

func newStalled() *stalled { return &stalled{resume: make(chan struct{}), closed: make(chan struct{})} }

func (s *stalled) Write(p []byte) (int, error) {
	select {
	case <-s.resume:
		return s.got.Write(p)
	case <-s.closed:
		return 0, io.ErrClosedPipe
	}
}

func (s *stalled) Close() error { s.once.Do(func() { close(s.closed) }); return nil }

// After the exit of a container's process, a client that receives nothing delays neither the log nor the exit, and
// still gets the rest of the output.
func TestStalledClientsDoNotDelayTheExit(t *testing.T) {
	var log bytes.Buffer
	f := &fan{log: &log, exited: make(chan struct{})}
	slow, gone := newStalled(), newStalled()
	a, b := f.add(slow), f.add(gone)
	_, err := f.Write([]byte("first\n")) // a client that is not far behind delays nothing
	require.NoError(t, err)
	require.Equal(t, "first\n", log.String())
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		for range 2 * waitFrames {
			_, _ = f.Write([]byte("more\n"))
		}
	}()
	close(f.exited)
	<-blocked
	close(slow.resume)
	f.flush(a)
	require.Equal(t, log.String(), slow.got.String())
	for range waitFrames + tailFrames {
		_, _ = f.Write([]byte("endless\n"))
	}
	<-gone.closed // it was too far behind
	f.flush(b)
	require.Empty(t, gone.got.String())
	f.flush(nil)
}

// Clients that stall together hold the output not much longer than one.
func TestStalledClientsHoldTheOutputBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fan{log: io.Discard, exited: make(chan struct{})}
		var clients []*client
		for range 64 {
			clients = append(clients, f.add(newStalled()))
		}
		began := time.Now()
		for range 2 + waitFrames {
			_, _ = f.Write([]byte("x\n"))
		}
		require.Less(t, time.Since(began), 6*slowClient)
		require.GreaterOrEqual(t, time.Since(began), slowClient)
		for _, c := range clients {
			f.flush(c)
		}
	})
}

// What the process wrote is read although its reader was busy when the time to drain had passed.
func TestOutputIsReadAfterTheDeadline(t *testing.T) {
	r, w, err := os.Pipe() // another process holds it open
	require.NoError(t, err)
	defer w.Close()
	defer r.Close()
	sent := bytes.Repeat([]byte("0123456789"), 4000)
	_, err = w.Write(sent)
	require.NoError(t, err)
	require.NoError(t, r.SetReadDeadline(time.Now().Add(-time.Second)))
	var got bytes.Buffer
	copyStream(r, &got)
	require.True(t, bytes.Equal(sent, got.Bytes()), "%d of %d bytes", got.Len(), len(sent))
}
