package connlimit

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func address(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestFewConnectionsAreKeptForOthers(t *testing.T) {
	refused, open := 0, 0
	l := New(nil, Config{
		Most:    100,
		Each:    90,
		Logger:  slog.New(slog.DiscardHandler),
		Opened:  func(n int) { open = n },
		Refused: func() { refused++ },
	})
	count := func(from string) (n int) {
		for l.admit(address(from)) {
			n++
		}
		return n
	}
	require.Equal(t, 75, count("192.0.2.1"))
	require.Equal(t, Few, count("192.0.2.2"))
	require.Equal(t, Few, count("192.0.2.3"))
	require.Equal(t, Few, count("192.0.2.4"))
	require.Equal(t, 1, count("192.0.2.5"), "the bound of all")
	l.leave(address("192.0.2.1"))
	require.Equal(t, 1, count("192.0.2.5"))
	for range 74 {
		l.leave(address("192.0.2.1"))
	}
	require.NotContains(t, l.share.of, address("192.0.2.1"))
	require.Equal(t, 26, open)
	require.Equal(t, 6, refused)
}

func TestWhatIsBeyondTheBoundIsClosedAtOnce(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := New(inner, Config{Most: 10, Each: 1, Logger: slog.New(slog.DiscardHandler)})
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		require.NoError(t, err)
		return c
	}
	first := dial()
	server := <-accepted
	beyond := dial()
	_, err = beyond.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, server.Close())
	require.Error(t, server.Close(), "closing twice counts once")
	again := dial()
	(<-accepted).Close()
	for _, c := range []net.Conn{first, beyond, again} {
		c.Close()
	}
	require.NoError(t, l.Close())
	for range accepted {
	}
}
