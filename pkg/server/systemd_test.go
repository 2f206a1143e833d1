package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJournalPriorities(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	stat := info.Sys().(*syscall.Stat_t)
	var out bytes.Buffer
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino+1))
	require.Equal(t, &out, journal(&out, f), "standard error is not the journal")
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino))
	for _, format := range []string{"text", "json"} {
		h, err := logHandler(journal(&out, f), "debug", format)
		require.NoError(t, err)
		log := slog.New(h)
		for i, write := range []func(string, ...any){log.Debug, log.Info, log.Warn, log.Error} {
			out.Reset()
			write("level=ERROR ", "level", "ERROR")
			require.Equal(t, []string{"<7>", "<6>", "<4>", "<3>"}[i], out.String()[:3])
			require.Contains(t, out.String(), "level=ERROR ")
			require.Equal(t, 1, strings.Count(out.String(), "\n"))
		}
	}
}

func TestSystemdIsNotified(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "2000")
	received := func() string {
		b := make([]byte, 100)
		n, err := conn.Read(b)
		require.NoError(t, err)
		return string(b[:n])
	}
	s := &supervised{again: func() bool { return false }, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	<-s.Ready()
	require.Equal(t, "READY=1", received())
	require.Equal(t, "WATCHDOG=1", received())
	require.Equal(t, "WATCHDOG=1", received())
	cancel()
	last := received()
	for last == "WATCHDOG=1" {
		last = received()
	}
	require.Equal(t, "STOPPING=1", last)
	require.NoError(t, <-ended)
}
