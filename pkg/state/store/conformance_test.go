package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRange(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	ctx := t.Context()
	var revs []int64
	for _, k := range []string{"/registry/a/1", "/registry/a/2", "/registry/a/3", "/registry/ab/1", "/registry/b/1"} {
		rev, err := s.Create(ctx, k, []byte(k), 0)
		require.NoError(t, err)
		revs = append(revs, rev)
	}
	last := revs[len(revs)-1]
	for _, tc := range []struct {
		prefix, from string
		limit, rev   int64
		want         []string
		remaining    int64
	}{
		{"/registry/a/", "", 0, 0, []string{"/registry/a/1", "/registry/a/2", "/registry/a/3"}, 0},
		{"/registry/a/", "", 2, 0, []string{"/registry/a/1", "/registry/a/2"}, 1},
		{"/registry/a/", "/registry/a/2", 2, 0, []string{"/registry/a/2", "/registry/a/3"}, 0},
		{"/registry/a/", "/registry/a/2\x00", 0, 0, []string{"/registry/a/3"}, 0},
		{"/registry/a/", "/registry/a/4", 0, 0, nil, 0},
		{"/registry/a/", "/registry/b/", 0, 0, nil, 0},
		{"/registry/a/", "", 1, revs[1], []string{"/registry/a/1"}, 1},
		{"/registry/", "/registry/ab", 1, 0, []string{"/registry/ab/1"}, 1},
		{"", "", 0, 0, []string{"/registry/a/1", "/registry/a/2", "/registry/a/3", "/registry/ab/1", "/registry/b/1"}, 0},
		{"/none/", "", 5, 0, nil, 0},
	} {
		kvs, at, remaining, err := s.Range(ctx, tc.prefix, tc.from, tc.limit, tc.rev)
		require.NoError(t, err)
		var got []string
		for _, kv := range kvs {
			got = append(got, kv.Key)
			require.Equal(t, kv.Key, string(kv.Value))
		}
		require.Equal(t, tc.want, got, "%+v", tc)
		require.Equal(t, tc.remaining, remaining, "%+v", tc)
		if tc.limit > 0 {
			page, pageAt, more, err := s.Page(ctx, tc.prefix, tc.from, tc.limit, tc.rev)
			require.NoError(t, err)
			require.Equal(t, kvs, page, "%+v", tc)
			require.Equal(t, at, pageAt)
			require.Equal(t, remaining > 0, more, "%+v", tc)
		}
		if tc.rev == 0 {
			tc.rev = last
		}
		require.Equal(t, tc.rev, at)
	}
	_, _, _, err := s.Range(ctx, "/registry/", "", 0, last+1)
	require.ErrorIs(t, err, ErrFuture)
	require.NoError(t, s.Compact(ctx, last))
	_, _, _, err = s.Range(ctx, "/registry/", "", 0, revs[0])
	require.ErrorIs(t, err, ErrCompacted)
}

func collect(t *testing.T, batches <-chan Batch, rev int64) []Event {
	t.Helper()
	var events []Event
	var last int64
	for {
		select {
		case b, ok := <-batches:
			require.True(t, ok, "the watch ended")
			require.Greater(t, b.Revision, last)
			for _, ev := range b.Events {
				require.Greater(t, ev.Revision, last, "a revision came in two batches, or out of order")
				require.LessOrEqual(t, ev.Revision, b.Revision)
			}
			last = b.Revision
			events = append(events, b.Events...)
			if b.Revision >= rev {
				return events
			}
		case <-time.After(time.Minute):
			t.Fatalf("no revision %d", rev)
		}
	}
}

func TestWatch(t *testing.T) {
	s, stop := open(t, Config{Dir: t.TempDir()})
	ctx := t.Context()
	start, err := s.Revision(ctx)
	require.NoError(t, err)
	live, end := s.Watch(ctx, "/registry/a/", start)

	r1, err := s.Create(ctx, "/registry/a/x", []byte("1"), 0)
	require.NoError(t, err)
	r2, err := s.Update(ctx, "/registry/a/x", []byte("2"), r1, 0)
	require.NoError(t, err)
	_, err = s.Create(ctx, "/registry/b/y", []byte("other"), 0)
	require.NoError(t, err)
	r4, err := s.Delete(ctx, "/registry/a/x", r2)
	require.NoError(t, err)
	r5, err := s.Create(ctx, "/registry/b/z", []byte("progress"), 0)
	require.NoError(t, err)

	x := "/registry/a/x"
	want := []Event{
		{KV: KV{Key: x, Value: []byte("1"), Revision: r1}},
		{KV: KV{Key: x, Value: []byte("2"), Revision: r2}, Prev: KV{Key: x, Value: []byte("1"), Revision: r1}},
		{KV: KV{Key: x, Revision: r4}, Deleted: true, Prev: KV{Key: x, Value: []byte("2"), Revision: r2}},
	}
	require.Equal(t, want, collect(t, live, r5))
	for rev := start; rev <= r5; rev++ {
		ctx, cancel := context.WithCancel(ctx)
		replay, _ := s.Watch(ctx, "/registry/a/", rev)
		if rev < r5 {
			i := slices.IndexFunc(want, func(e Event) bool { return e.Revision > rev })
			if i < 0 {
				i = len(want)
			}
			require.Equal(t, append([]Event(nil), want[i:]...), collect(t, replay, r5), "after revision %d", rev)
		}
		cancel()
		for range replay { //nolint:revive // until it is closed
		}
	}

	require.NoError(t, s.Compact(ctx, r4))
	gone, why := s.Watch(ctx, "/registry/a/", start)
	_, ok := <-gone
	require.False(t, ok)
	require.ErrorIs(t, why(), ErrCompacted)

	stop()
	_, ok = <-live
	require.False(t, ok)
	require.ErrorIs(t, end(), ErrUnavailable)
	_, err = s.Get(ctx, x)
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestTimeToLive(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	ctx := t.Context()
	start, err := s.Revision(ctx)
	require.NoError(t, err)
	batches, _ := s.Watch(ctx, "/registry/events/", start)
	var rev int64
	for i := range 3 {
		// long enough for the updates below
		rev, err = s.Create(ctx, fmt.Sprintf("/registry/events/%d", i), []byte("e"), 10*time.Second)
		require.NoError(t, err)
	}
	// A key that is updated without a TTL does not expire.
	_, err = s.Update(ctx, "/registry/events/2", []byte("kept"), rev, 0)
	require.NoError(t, err)
	deleted := map[string]bool{}
	for b := range batches {
		for _, ev := range b.Events {
			if ev.Deleted {
				deleted[ev.Key] = true
				require.Equal(t, []byte("e"), ev.Prev.Value)
			}
		}
		if len(deleted) == 2 {
			break
		}
	}
	_, err = s.Get(ctx, "/registry/events/2")
	require.NoError(t, err)
}

func TestEventsShareALease(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	for i := range 50 {
		_, err := s.Create(t.Context(), fmt.Sprintf("/registry/events/%d", i), []byte("e"), time.Hour)
		require.NoError(t, err)
	}
	r, err := s.server.Load().LeaseLeases(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, r.Leases, 1)
}

func TestHistoryIsBounded(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir(), RetainRevisions: 20})
	ctx := t.Context()
	rev, err := s.Create(ctx, "/registry/a", []byte("0"), 0)
	require.NoError(t, err)
	first := rev
	for range 60 {
		rev, err = s.Update(ctx, "/registry/a", []byte("x"), rev, 0)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return s.compacted.Load() > first }, time.Minute, time.Millisecond)
	_, _, _, err = s.Range(ctx, "/registry/", "", 0, first)
	require.ErrorIs(t, err, ErrCompacted)
}

func TestHistoryIsDroppedInTime(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir(), CompactEvery: 20 * time.Millisecond})
	rev, err := s.Create(t.Context(), "/registry/a", []byte("0"), 0)
	require.NoError(t, err)
	rev, err = s.Update(t.Context(), "/registry/a", []byte("1"), rev, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.compacted.Load() == rev }, time.Minute, time.Millisecond)
}

func TestFull(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir(), QuotaBytes: 1 << 20})
	ctx := t.Context()
	big := bytes.Repeat([]byte("x"), 300<<10)
	var revs []int64
	var err error
	for i := range 10 {
		var rev int64
		if rev, err = s.Create(ctx, fmt.Sprintf("/registry/%d", i), big, 0); err != nil {
			break
		}
		revs = append(revs, rev)
		s.server.Load().KV().Commit()
	}
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, err, ErrFull)
	require.ErrorContains(t, err, "over the quota of 1 MB: delete objects")
	for i, rev := range revs {
		_, err := s.Delete(ctx, fmt.Sprintf("/registry/%d", i), rev)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		_, err := s.Create(ctx, "/registry/again", big, 0)
		return err == nil
	}, time.Minute, 10*time.Millisecond, "space must come back without help")

	full, _ := open(t, Config{Dir: t.TempDir(), MinFreeBytes: 1 << 60})
	_, err = full.Create(ctx, "/registry/a", []byte("x"), 0)
	require.ErrorIs(t, err, ErrFull)
	require.ErrorContains(t, err, "is full")
	_, err = s.Create(ctx, "/registry/large", make([]byte, MaxValueBytes+1), 0)
	require.ErrorIs(t, err, ErrTooLarge)
}

// TestFullDisk: on a full disk creates are refused first, then updates; deletes, and the updates that start a deletion,
// succeed, so that space can be freed.
func TestFullDisk(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	ctx := t.Context()
	rev, err := s.Create(ctx, "/registry/a", []byte("x"), 0)
	require.NoError(t, err)
	disk := func(free int64) {
		s.space.looked.Store(time.Now().Add(time.Hour).UnixNano()) // no write looks at the real disk
		s.space.free.Store(free)
	}
	least := s.space.least.Load()
	disk(least - 1)
	_, err = s.Create(ctx, "/registry/b", []byte("x"), 0)
	require.ErrorIs(t, err, ErrFull)
	_, err = s.Create(ctx, "/registry/a", []byte("x"), 0)
	require.ErrorIs(t, err, ErrExists)
	rev, err = s.Update(ctx, "/registry/a", []byte("deleting"), rev, 0)
	require.NoError(t, err)
	disk(s.space.leastUpdate.Load() - 1)
	_, err = s.Update(ctx, "/registry/a", []byte("more"), rev, 0)
	require.ErrorIs(t, err, ErrFull)
	disk(0)
	_, err = s.Delete(ctx, "/registry/a", rev)
	require.NoError(t, err)
}

// TestEvictionComesBeforeAFullStore: nodes evict pods by default when less than 5 % of the disk is free, and the store
// refuses writes later.
func TestEvictionComesBeforeAFullStore(t *testing.T) {
	for disk, want := range map[int64]int64{1 << 40: 128 << 20, 4 << 30: 4 << 30 / 40, 1 << 30: 32 << 20} {
		require.Equal(t, want, minFreeOf(disk))
		require.Less(t, minFreeOf(disk), disk/20)
	}
}

// A nearly full store warns and names the largest kinds; a full one still accepts updates that deletions need.
func TestNearlyFull(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir(), QuotaBytes: 8 << 20})
	ctx := t.Context()
	require.Empty(t, s.Warning())
	small, err := s.Create(ctx, "/registry/leases/a", []byte("lease"), 0)
	require.NoError(t, err)
	// Small compared with the quota: pages that a commit replaces count as used until readers of the earlier state are
	// done.
	big := bytes.Repeat([]byte("x"), 50<<10)
	var revs []int64
	for i := range 400 {
		var rev int64
		if rev, err = s.Create(ctx, fmt.Sprintf("/registry/secrets/%d", i), big, 0); err != nil {
			break
		}
		revs = append(revs, rev)
		s.server.Load().KV().Commit()
	}
	require.ErrorIs(t, err, ErrFull)
	small, err = s.Update(ctx, "/registry/leases/a", []byte("renewed"), small, 0)
	require.NoError(t, err)
	_, err = s.Delete(ctx, "/registry/leases/a", small)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return strings.Contains(s.Warning(), "most is in secrets: ")
	}, time.Minute, time.Millisecond)
	require.Regexp(t, `^\d MB of the quota of 8 MB are in use: delete objects`, s.Warning())
	for i, rev := range revs {
		_, err := s.Delete(ctx, fmt.Sprintf("/registry/secrets/%d", i), rev)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		return s.Warning() == ""
	}, time.Minute, 10*time.Millisecond, "deletions make room by themselves")
}

func TestOneProcessOnly(t *testing.T) {
	dir := t.TempDir()
	open(t, Config{Dir: dir})
	second, err := New(Config{Dir: dir})
	require.NoError(t, err)
	err = second.Run(t.Context())
	require.ErrorContains(t, err, fmt.Sprintf("%s is in use by process %d: stop that one first", dir, os.Getpid()))
}

func TestNotADirectory(t *testing.T) {
	_, err := New(Config{})
	require.Error(t, err)
	_, err = New(Config{Dir: "relative"})
	require.ErrorContains(t, err, "must be an absolute path")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	s, err := New(Config{Dir: file})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), "not a directory")
}

func TestBrokenData(t *testing.T) {
	dir := t.TempDir()
	_, stop := open(t, Config{Dir: dir})
	stop()
	require.NoError(t,
		os.WriteFile(filepath.Join(dir, "etcd/member/snap/db"), bytes.Repeat([]byte("broken"), 10000), 0o600))
	s, err := New(Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), dir)
}

func TestSnapshot(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	_, err := s.Create(t.Context(), "/registry/a", []byte("in the snapshot"), 0)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, s.Snapshot(t.Context(), &b))
	body, sum := b.Bytes()[:b.Len()-sha256.Size], b.Bytes()[b.Len()-sha256.Size:]
	require.Zero(t, len(body)%512)
	want := sha256.Sum256(body)
	require.Equal(t, want[:], sum)
	require.Contains(t, string(body), "in the snapshot")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Snapshot(ctx, &b), context.Canceled)
}

// A start replays the log while the member becomes leader. It must succeed every time, however long the log is.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	s, stop := open(t, Config{Dir: dir})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 80 {
				if _, err := s.Create(t.Context(), fmt.Sprintf("/registry/%d/%d", w, i), value3K, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	before, at, _, err := s.Range(t.Context(), "/registry/", "", 0, 0)
	require.NoError(t, err)
	for range 20 {
		stop()
		s, stop = open(t, Config{Dir: dir})
		kvs, rev, _, err := s.Range(t.Context(), "/registry/", "", 0, 0)
		require.NoError(t, err)
		require.Equal(t, at, rev)
		require.Equal(t, before, kvs)
	}
}

func TestCancelledWrite(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, "/registry/a", []byte("x"), 0)
	require.ErrorIs(t, err, context.Canceled)
}

func atoi(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}
