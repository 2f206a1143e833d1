package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWget(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			http.NotFound(w, r)
		case "/silent":
			<-release
		default:
			_, _ = io.WriteString(w, "hello")
		}
	}))
	defer server.Close()
	defer close(release) // before Close, which waits for handlers
	var out bytes.Buffer
	require.NoError(t, wget([]string{"-T", "9", "-qO-", strings.TrimPrefix(server.URL, "http://")}, &out))
	require.NoError(t, wget([]string{"--spider", "--timeout=9", server.URL}, &out))
	require.Equal(t, "hello", out.String())
	file := filepath.Join(t.TempDir(), "page")
	require.NoError(t, wget([]string{"-T9", "-O", file, server.URL}, &out))
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "hello", string(page))
	require.ErrorContains(t, wget([]string{"-T9", server.URL + "/missing"}, &out), "404 Not Found")
	var timeout net.Error
	require.ErrorAs(t, wget([]string{"-T1", "-O-", server.URL + "/silent"}, &out), &timeout)
	require.True(t, timeout.Timeout())
	for _, args := range [][]string{{"-qO-", server.URL}, {"-T", "1", "--post-file=x", server.URL}, {"-T", "1"}} {
		require.ErrorIs(t, wget(args, &out), errBusybox)
	}
}

func TestNcPrintsAsManyPacketsAsAskedFor(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	done := make(chan error, 1)
	go func() {
		b := make([]byte, 100)
		n, from, err := server.ReadFrom(b)
		_, err2 := server.WriteTo(b[:n], from)
		_, err3 := server.WriteTo([]byte("another"), from)
		done <- errors.Join(err, err2, err3)
	}()
	host, port, err := net.SplitHostPort(server.LocalAddr().String())
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, nc([]string{"-u", "-w", "9", "-W", "1", host, port}, strings.NewReader("hello"), &out))
	require.NoError(t, <-done)
	require.Equal(t, "hello", out.String())
	require.ErrorIs(t, nc([]string{"-l", "-p", "80"}, nil, &out), errBusybox)
}
