package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pair returns a gathered connection and its peer. The pipe has no buffer: a byte is sent when the peer reads it.
func pair(t *testing.T) (*gathered, net.Conn) {
	near, far := net.Pipe()
	c, err := gathering{once{conn: near}, time.Minute}.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close(); _ = near.Close() })
	return c.(*gathered), far
}

type once struct {
	net.Listener
	conn net.Conn
}

func (o once) Accept() (net.Conn, error) { return o.conn, nil }

func TestGatheredKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := pair(t)
		var want bytes.Buffer
		go func() {
			for i := range 5000 {
				p := bytes.Repeat([]byte{byte(i)}, i%97+1)
				want.Write(p)
				n, err := c.Write(p)
				require.NoError(t, err)
				require.Equal(t, len(p), n)
			}
			require.NoError(t, c.Close())
		}()
		got, err := io.ReadAll(peer)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want.Bytes(), got), "%d of %d bytes", len(got), want.Len())
	})
}

// While the peer does not read, writes are combined up to the limit; then the writer blocks.
func TestGatheredBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := pair(t)
		_, err := c.Write([]byte("x")) // being sent
		require.NoError(t, err)
		synctest.Wait()
		written := 0
		go func() {
			for range gatherMost/1024 + 1 {
				_, err := c.Write(make([]byte, 1024))
				require.NoError(t, err)
				written += 1024
			}
		}()
		synctest.Wait()
		require.Equal(t, gatherMost, written)
		b := make([]byte, 2*gatherMost)
		n, _ := peer.Read(b)
		require.Equal(t, 1, n)
		n, _ = peer.Read(b)
		require.Equal(t, gatherMost, n)
		n, _ = peer.Read(b)
		require.Equal(t, 1024, n)
		// A write longer than the limit succeeds.
		go func() { _, _ = c.Write(make([]byte, 2*gatherMost)) }()
		_, err = io.ReadFull(peer, b)
		require.NoError(t, err)
	})
}

// crypto/tls sets a write deadline in the past before it closes. Earlier writes must still arrive.
func TestGatheredDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := pair(t)
		_, err := c.Write([]byte("last words"))
		require.NoError(t, err)
		go func() {
			require.NoError(t, c.SetWriteDeadline(time.Now()))
			require.NoError(t, c.Close())
		}()
		got, err := io.ReadAll(peer)
		require.NoError(t, err)
		require.Equal(t, "last words", string(got))
	})
}

// Close waits until the deadline for a peer that does not read, and then returns the error.
func TestGatheredFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pair(t)
		began := time.Now()
		require.NoError(t, c.SetWriteDeadline(began.Add(5*time.Second)))
		_, err := c.Write([]byte("nobody reads"))
		require.NoError(t, err)
		c.settle()
		require.Equal(t, 5*time.Second, time.Since(began))
		_, err = c.Write([]byte("more"))
		var timeout net.Error
		require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
		require.NoError(t, c.Close())
	})
}
