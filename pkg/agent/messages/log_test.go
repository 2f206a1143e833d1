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

// TestLogKeepsWhatHasNotEnded: whatever is written and however the end of the log is damaged, messages that were put before are found, and
// those that have ended are not.
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
				seq, err := l.put(&stored{ID: id, Queue: workers.Queue{Worker: "w"}, payload: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload")})
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
