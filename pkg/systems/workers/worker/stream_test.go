package worker

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

// TestReconnect checks that a program whose connection breaks, as when the agent restarts, answers on the next one.
func TestReconnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	t.Setenv("AWS_LAMBDA_RUNTIME_API", l.Addr().String())
	t.Setenv("CORACLE_MESSAGES_API", l.Addr().String())
	t.Setenv("WORKER_CONCURRENCY", "3")
	began, end := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- Serve(t.Context(), func(context.Context, *Message) ([]byte, error) {
			close(began)
			<-end
			return []byte("reply"), nil
		})
	}()
	accept := func(slots string) (net.Conn, *bufio.Reader, *bufio.Writer) {
		c, err := l.Accept()
		require.NoError(t, err)
		r, w := bufio.NewReader(c), bufio.NewWriter(c)
		req, err := http.ReadRequest(r)
		require.NoError(t, err)
		require.Equal(t, frame.Path, req.URL.Path)
		require.Equal(t, slots, req.Header.Get(frame.HeaderSlots))
		_, err = io.WriteString(w, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		require.NoError(t, err)
		return c, r, w
	}
	c, _, w := accept("3")
	require.NoError(t, frame.Write(w, &frame.Head{Kind: frame.Message, ID: "1", Deadline: 1 << 50}, []byte("x")))
	require.NoError(t, w.Flush())
	<-began
	require.NoError(t, c.Close())

	c, r, w := accept("2")
	defer c.Close()
	require.NoError(t, frame.Write(w, &frame.Head{Kind: frame.Last}, nil))
	require.NoError(t, w.Flush())
	close(end)
	h, size, err := frame.Read(r)
	require.NoError(t, err)
	require.Equal(t, frame.Head{Kind: frame.Reply, ID: "1", ContentType: "application/octet-stream"}, h)
	reply := make([]byte, size)
	_, err = io.ReadFull(r, reply)
	require.NoError(t, err)
	require.Equal(t, "reply", string(reply))
	require.NoError(t, <-done)
}
