package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// TestReadsFollowTheMembership adds a member that never starts. Reads and writes need it, so none may succeed.
func TestReadsFollowTheMembership(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	ctx := t.Context()
	_, err := s.Create(ctx, "/registry/a", []byte("a"), 0)
	require.NoError(t, err)
	require.Equal(t, 1, s.Stats().Members)
	e, err := s.ours()
	require.NoError(t, err)
	require.True(t, leads(e))

	_, err = e.AddMember(ctx, membership.Member{
		ID: 7, RaftAttributes: membership.RaftAttributes{PeerURLs: []string{"http://127.0.0.1:1"}},
	})
	require.NoError(t, err)
	require.Equal(t, 2, s.Stats().Members)
	for name, read := range map[string]func(context.Context) error{
		"get":      func(ctx context.Context) error { _, err := s.Get(ctx, "/registry/a"); return err },
		"range":    func(ctx context.Context) error { _, _, _, err := s.Range(ctx, "/registry/", "", 0, 0); return err },
		"revision": func(ctx context.Context) error { _, err := s.Revision(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			require.Error(t, read(ctx), "without the other member") // the deadline, or no leader
		})
	}
}

// TestAFollowerDropsNoHistoryByTheClock: only the leader compacts by age, and a follower records what it compacted.
func TestAFollowerDropsNoHistoryByTheClock(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	for i := range 5 {
		_, err := s.Create(t.Context(), fmt.Sprintf("/registry/%d", i), nil, 0)
		require.NoError(t, err)
	}
	e, err := s.running()
	require.NoError(t, err)
	c := clock{s: s}
	require.Zero(t, c.tick(e, true), "the first tick only notes the revision")
	now := e.seen()
	require.Equal(t, now, c.tick(e, true))
	require.Zero(t, c.tick(e, false))

	require.NoError(t, s.compactTo(t.Context(), e, now-2))
	s.compacted.Store(0) // as on a member that did not compact
	require.Zero(t, c.tick(e, false))
	require.Equal(t, now-2, s.compacted.Load())
}
