package messages

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

func reopen(t require.TestingT, l *messageLog, dir string) (*messageLog, map[string]*stored) {
	if l != nil {
		require.NoError(t, l.close())
	}
	l, list, err := openLog(dir)
	require.NoError(t, err)
	found := map[string]*stored{}
	for _, s := range list {
		found[s.ID] = s
	}
	return l, found
}

// TestLogKeepsWhatHasNotEnded checks that for any writes and any damage at the end of the log, earlier unfinished
// messages are found and finished ones are not.
func TestLogKeepsWhatHasNotEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "messages-")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		l, _ := reopen(t, nil, dir)
		live := map[string]uint64{}
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n++
				id := fmt.Sprint(n)
				seq, err := l.put(&stored{
					ID:      id,
					Queue:   workers.Queue{Worker: "w"},
					payload: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload"),
				})
				require.NoError(t, err)
				live[id] = seq
			},
			"done": func(t *rapid.T) {
				for id, seq := range live {
					l.done(seq)
					delete(live, id)
					break
				}
			},
			"torn": func(t *rapid.T) {
				names, err := filepath.Glob(filepath.Join(dir, "*.log"))
				require.NoError(t, err)
				if len(names) > 0 {
					f, err := os.OpenFile(names[len(names)-1], os.O_WRONLY|os.O_APPEND, 0)
					require.NoError(t, err)
					_, err = f.Write(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "garbage"))
					require.NoError(t, err)
					require.NoError(t, f.Close())
				}
				l, _ = reopen(t, l, dir)
			},
			"": func(t *rapid.T) {
				var found map[string]*stored
				l, found = reopen(t, l, dir)
				require.Len(t, found, len(live))
				for id, seq := range live {
					require.Equal(t, seq, found[id].seq)
				}
			},
		})
		require.NoError(t, l.close())
	})
}

func TestLogCountsAttemptsAndRemovesFiles(t *testing.T) {
	dir := t.TempDir()
	l, _ := reopen(t, nil, dir)
	big := make([]byte, workers.MaxPayload)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []uint64
	for i := range 20 {
		wg.Go(func() {
			seq, err := l.put(&stored{ID: fmt.Sprint(i), payload: big})
			if err == nil {
				mu.Lock()
				all = append(all, seq)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, all, 20)
	l.try(all[0], 2)
	l, found := reopen(t, l, dir)
	require.Len(t, found, 20)
	attempts := 0
	for _, s := range found {
		attempts += int(s.Attempts)
		require.Len(t, s.payload, workers.MaxPayload)
	}
	require.Equal(t, 2, attempts)
	for _, seq := range all {
		l.done(seq)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.Len(t, names, 1, "files without messages are removed")
	require.NoError(t, l.close())
}

func TestLogIsBounded(t *testing.T) {
	l, _ := reopen(t, nil, t.TempDir())
	l.bytes = logBytes
	_, err := l.put(&stored{ID: "1", payload: []byte("x")})
	require.ErrorIs(t, err, errLogFull)
	require.NoError(t, l.close())
}

func sizeOf(t *testing.T, dir string) (n int64) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		n += info.Size()
	}
	return n
}

// TestLogIsCompacted checks that a message that does not end does not keep later finished messages on disk.
func TestLogIsCompacted(t *testing.T) {
	dir := t.TempDir()
	l, _ := reopen(t, nil, dir)
	stuck, err := l.put(&stored{ID: "stuck", payload: []byte("precious")})
	require.NoError(t, err)
	l.try(stuck, 7)
	big := make([]byte, workers.MaxPayload)
	for range 60 {
		seq, mark, err := l.write(&stored{ID: "x", payload: big})
		require.NoError(t, err)
		require.NotZero(t, mark)
		l.done(seq)
		require.LessOrEqual(t, sizeOf(t, dir), int64(slack+2*workers.MaxPayload+segmentBytes))
	}
	require.Greater(t, l.segments[0].number, uint64(1), "the file of the message was removed")
	require.Len(t, l.where, 1)
	l, found := reopen(t, l, dir)
	require.Len(t, found, 1)
	require.Equal(t, "precious", string(found["stuck"].payload))
	require.Equal(t, []int64{int64(stuck), 7}, []int64{int64(found["stuck"].seq), int64(found["stuck"].Attempts)})
	l.done(stuck)
	l, found = reopen(t, l, dir)
	require.Empty(t, found)
	require.NoError(t, l.close())
}

// TestCompactionIsInterrupted checks that after a crash at any point of a compaction each message is found once,
// with its attempts.
func TestCompactionIsInterrupted(t *testing.T) {
	dir := t.TempDir()
	l, _ := reopen(t, nil, dir)
	for i := range 5 {
		seq, err := l.put(&stored{ID: fmt.Sprint(i), payload: []byte(fmt.Sprint("payload ", i))})
		require.NoError(t, err)
		l.try(seq, int32(i))
	}
	l.done(3)
	require.NoError(t, l.extend())
	before := l.segments[1].size
	require.NoError(t, l.evacuate(l.segments[0])) // the file stays, as after a crash before its removal
	names := []string{l.segments[0].file.Name(), l.segments[1].file.Name()}
	require.NoError(t, l.close())
	first, err := os.ReadFile(names[0])
	require.NoError(t, err)
	second, err := os.ReadFile(names[1])
	require.NoError(t, err)
	for cut := before; cut <= int64(len(second)); cut++ {
		now := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(now, filepath.Base(names[0])), first, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(now, filepath.Base(names[1])), second[:cut], 0o600))
		var l *messageLog
		var found map[string]*stored
		for range 2 { // the second time finds the result of the first
			l, found = reopen(t, l, now)
			require.Len(t, found, 4, "cut at %d", cut)
			for i, id := range []string{"0", "1", "3", "4"} {
				require.Equal(t, "payload "+id, string(found[id].payload))
				require.Equal(t, id, fmt.Sprint(found[id].Attempts), "cut at %d", cut)
				require.NotZero(t, found[id].seq, i)
			}
		}
		require.NoError(t, l.close())
	}
}
