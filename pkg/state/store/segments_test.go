package store

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSegmentsFromBeforeTheLastSnapshotButOneAreNotNeeded(t *testing.T) {
	segments := []string{
		"0000000000000000-0000000000000000.wal", "0000000000000001-0000000000000100.wal",
		"0000000000000002-0000000000000200.wal", "0000000000000003-0000000000000300.wal",
	}
	for name, c := range map[string]struct {
		snapshots []string
		keep      int
	}{
		"within a segment": {
			[]string{"0000000000000002-0000000000000280.snap", "0000000000000003-0000000000000310.snap"}, 2,
		},
		"by index, not term": {
			[]string{"0000000000000001-0000000000000310.snap", "0000000000000002-0000000000000280.snap"}, 2,
		},
		"the first of one": {
			[]string{"0000000000000002-0000000000000200.snap", "0000000000000002-0000000000000310.snap"}, 1,
		},
		"in the first": {
			[]string{"0000000000000002-0000000000000001.snap", "0000000000000002-0000000000000310.snap"}, 0,
		},
		"behind all": {
			[]string{"0000000000000002-0000000000000900.snap", "0000000000000002-0000000000000910.snap"}, 3,
		},
		"a name we do not know": {[]string{"x.snap", "0000000000000002-0000000000000910.snap"}, 0},
	} {
		require.Len(t, before(segments, c.snapshots), c.keep, name)
	}
	require.Empty(t,
		before([]string{"x.wal", segments[1]},
			[]string{"0000000000000002-0000000000000900.snap", "0000000000000002-0000000000000910.snap"}))
}

// After a storm of writes and a kill, a start reads little: neither the whole log nor more history than is retained.
func TestAStartAfterAStormOfWritesReadsLittle(t *testing.T) {
	dir := t.TempDir()
	const retain = 2000
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), crashDir+"="+dir, crashStorm+"=1")
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	last := map[string]int64{}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); {
		f := strings.Fields(lines.Text())
		require.Len(t, f, 3)
		last[f[1]] = max(last[f[1]], int64(atoi(t, f[2])))
		if n++; n == 20_000 {
			require.NoError(t, child.Process.Kill())
		}
	}
	_ = child.Wait()
	log := filepath.Join(dir, Directory, "member", "wal")
	require.NoError(t, os.WriteFile(filepath.Join(log, "0000000000000001-0000000000000001.wal.broken"), nil, 0o600))
	was, err := filesIn(log, ".wal")
	require.NoError(t, err)
	require.Greater(t, len(was), 3)
	require.NoError(t, tidyLog(filepath.Join(dir, Directory)))
	// Twice the entries between two snapshots, and entries written while the last one was made.
	is, err := filesIn(log, ".wal")
	require.NoError(t, err)
	require.LessOrEqual(t, len(is), 3, "of %d", len(was))
	broken, err := filesIn(log, ".broken")
	require.NoError(t, err)
	require.Empty(t, broken)

	s, _ := open(t, Config{Dir: dir, RetainBytes: retain * 3 << 10})
	e, err := s.running()
	require.NoError(t, err)
	// The child retained at most twice 4 MiB; a compaction may have been in progress.
	require.Less(t, e.seen()-s.compacted.Load(), int64(12_000))
	kvs, _, _, err := s.Range(t.Context(), "/registry/", "", 0, 0)
	require.NoError(t, err)
	got := map[string]int64{}
	for _, kv := range kvs {
		got[kv.Key] = kv.Revision
	}
	for k, rev := range last {
		require.GreaterOrEqual(t, got[k], rev, k)
	}
}

// History is limited by its size too.
func TestCompactsByBytes(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir(), RetainBytes: 64 << 10})
	rev, err := s.Create(t.Context(), "/registry/a/x", value3K, 0)
	require.NoError(t, err)
	first := rev
	for range 100 {
		rev, err = s.Update(t.Context(), "/registry/a/x", value3K, rev, 0)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return s.compacted.Load() > first+10 }, time.Minute, time.Millisecond)
	_, _, _, err = s.Range(context.Background(), "/registry/", "", 0, rev-15)
	require.NoError(t, err, "what is to be retained is")
}

func TestHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const retain = 1000
		var h history
		sizes := map[int64]int64{} // by revision
		var rev, dropped int64
		for range rapid.IntRange(1, 300).Draw(t, "writes") {
			rev++
			sizes[rev] = int64(rapid.IntRange(0, 300).Draw(t, "size"))
			over := h.add(rev, sizes[rev], retain)
			cut := h.cut(retain)
			var behind int64
			for r := max(cut, 1); r <= rev; r++ {
				behind += sizes[r]
			}
			if cut > 0 {
				require.GreaterOrEqual(t, behind, int64(retain), "less would be retained than is to be")
			}
			require.Less(t, len(h.marks), 8*3+2)
			if over {
				require.Greater(t, cut, dropped)
				h.drop(cut)
				dropped = cut
			}
		}
	})
}
