package store

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		fmt.Fprintln(os.Stderr, crashWriter(dir))
		os.Exit(1)
	}
	// Where etcd would exit the process, TestBrokenData's store leaks one of etcd's goroutines.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.etcd.io/etcd/server/v3/storage.OpenBackend"))
}

func open(t testing.TB, cfg Config, change ...func(*Store)) (*Store, func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	for _, f := range change {
		f(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		t.Fatalf("store did not start: %v", err)
	}
	var stopped bool
	stop := func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

func TestWrites(t *testing.T) {
	began := time.Now()
	s, _ := open(t, Config{Dir: t.TempDir()})
	t.Log("started in", time.Since(began))
	ctx := t.Context()
	r1, err := s.Create(ctx, "/registry/pods/a/x", []byte("one"), 0)
	require.NoError(t, err)
	t.Log("first put after", time.Since(began))
	_, err = s.Create(ctx, "/registry/pods/a/x", []byte("two"), 0)
	require.ErrorIs(t, err, ErrExists)
	kv, err := s.Get(ctx, "/registry/pods/a/x")
	require.NoError(t, err)
	require.Equal(t, KV{Key: "/registry/pods/a/x", Value: []byte("one"), Revision: r1}, kv)

	r2, err := s.Update(ctx, kv.Key, []byte("two"), r1, 0)
	require.NoError(t, err)
	require.Greater(t, r2, r1)
	_, err = s.Update(ctx, kv.Key, []byte("three"), r1, 0)
	require.ErrorIs(t, err, ErrConflict)
	_, err = s.Update(ctx, "/registry/pods/a/none", []byte("three"), r1, 0)
	require.ErrorIs(t, err, ErrNotFound)
	_, err = s.Delete(ctx, kv.Key, r1)
	require.ErrorIs(t, err, ErrConflict)
	r3, err := s.Delete(ctx, kv.Key, r2)
	require.NoError(t, err)
	require.Greater(t, r3, r2)
	_, err = s.Delete(ctx, kv.Key, r2)
	require.ErrorIs(t, err, ErrNotFound)
	_, err = s.Get(ctx, kv.Key)
	require.ErrorIs(t, err, ErrNotFound)
	now, err := s.Revision(ctx)
	require.NoError(t, err)
	require.Equal(t, r3, now)
}
