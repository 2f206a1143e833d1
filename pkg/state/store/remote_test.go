package store

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// elsewhere runs etcd until the test ends, and returns its URL and a function that stops it.
func elsewhere(t *testing.T, dir string) (string, func()) {
	t.Helper()
	// No other process listens at or connects from this process's own loopback address: the ports stay free until etcd
	// takes them.
	own := fmt.Sprintf("127.%d.%d.%d:0", 64+os.Getpid()>>16&63, os.Getpid()>>8&255, os.Getpid()&255)
	var urls []string
	var taken []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", own)
		require.NoError(t, err)
		urls, taken = append(urls, (&url.URL{Scheme: "http", Host: l.Addr().String()}).String()), append(taken, l)
	}
	for _, l := range taken {
		require.NoError(t, l.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var out bytes.Buffer
	go func() {
		ended <- RunProgram(ctx,
			[]string{"--data-dir", dir, "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
				"--listen-peer-urls", urls[1], "--unsafe-no-fsync", "--log-level", "error"}, &out)
	}()
	stop := func() { cancel(); require.NoError(t, <-ended) }
	return urls[0], stop
}

func TestEtcdElsewhere(t *testing.T) {
	at, stop := elsewhere(t, t.TempDir())
	defer stop()
	s, _ := open(t, Config{Servers: Servers{URLs: []string{at}}})
	ctx := t.Context()
	require.False(t, s.Alone())

	first, err := s.Create(ctx, "/registry/a/1", []byte("one"), 0)
	require.NoError(t, err)
	_, err = s.Create(ctx, "/registry/a/1", []byte("two"), 0)
	require.ErrorIs(t, err, ErrExists)
	_, err = s.Update(ctx, "/registry/a/1", []byte("two"), first-1, 0)
	require.ErrorIs(t, err, ErrConflict)
	_, err = s.Update(ctx, "/registry/none", []byte("two"), 1, 0)
	require.ErrorIs(t, err, ErrNotFound)
	rev, err := s.Update(ctx, "/registry/a/1", []byte("two"), first, time.Hour)
	require.NoError(t, err)
	_, index, err := s.Txn(ctx, Op{Key: "/registry/b", Value: []byte("b")}, Op{Key: "/registry/a/1", Value: []byte("x")})
	require.ErrorIs(t, err, ErrExists)
	require.Equal(t, 1, index)
	last, err := s.Delete(ctx, "/registry/a/1", rev)
	require.NoError(t, err)
	now, err := s.Revision(ctx)
	require.NoError(t, err)
	require.Equal(t, last, now)

	events, begin, err := s.History(ctx, "/registry/", first-1, last, 1<<20)
	require.NoError(t, err)
	require.Equal(t, first-1, begin)
	require.Len(t, events, 3)
	require.Equal(t, "one", string(events[1].Prev.Value))
	require.True(t, events[2].Deleted)
	require.Equal(t, "two", string(events[2].Prev.Value))

	_, _, _, err = s.Range(ctx, "/registry/", "", 0, last+1)
	require.ErrorIs(t, err, ErrFuture)
	require.NoError(t, s.Compact(ctx, last))
	_, _, _, err = s.Range(ctx, "/registry/", "", 0, first)
	require.ErrorIs(t, err, ErrCompacted)
	batches, end := s.Watch(ctx, "/registry/", first-1)
	for range batches {
		t.Error("a watch of compacted history has changes")
	}
	require.ErrorIs(t, end(), ErrCompacted)
	require.ErrorContains(t, s.Snapshot(ctx, &bytes.Buffer{}), "etcdctl snapshot save")
}

// While etcd is away, watches report changes in order and writes fail in bounded time.
func TestEtcdElsewhereGoesAway(t *testing.T) {
	at, stop := elsewhere(t, t.TempDir())
	stopped := false
	defer func() {
		if !stopped {
			stop()
		}
	}()
	s, _ := open(t, Config{Servers: Servers{URLs: []string{at}}})
	batches, _ := s.Changes(t.Context(), "/registry/", 0)
	var last int64
	for i := range 20 {
		var err error
		last, err = s.Create(t.Context(), fmt.Sprintf("/registry/%d", i), []byte("x"), 0)
		require.NoError(t, err)
	}
	var seen int64
	for b := range batches {
		for _, e := range b.Events {
			require.Greater(t, e.Revision, seen)
			seen = e.Revision
		}
		if seen == last {
			break
		}
	}
	stop()
	stopped = true
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := s.Create(ctx, "/registry/late", []byte("x"), 0)
	require.Error(t, err, "etcd is away")
}

func TestProgramRefusesWhatItDoesNotDo(t *testing.T) {
	for args, want := range map[string]string{
		"--nope":   "flag provided but not defined: -nope",
		"--cors=*": "--cors is not supported: use upstream's etcd",
		"word":     `"word" is not a valid flag`,
	} {
		require.ErrorContains(t, RunProgram(t.Context(), []string{args}, &bytes.Buffer{}), want)
	}
	var out bytes.Buffer
	require.NoError(t, RunProgram(t.Context(), []string{"--help"}, &out))
	require.Contains(t, out.String(), "\n  --unsafe-no-fsync 'false'\n")
	require.NotContains(t, out.String(), "--cors")
}
