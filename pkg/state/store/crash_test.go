package store

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	crashDir = "CORACLE_STORE_CRASH_DIR"
	// crashStorm makes the child overwrite a few keys and retain little history.
	crashStorm = "CORACLE_STORE_CRASH_STORM"
)

// crashWriter is the child process of TestKilled. It writes until it is killed, and prints each acknowledged write.
func crashWriter(dir string) error {
	storm := os.Getenv(crashStorm) != ""
	cfg := Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)}
	if storm {
		cfg.RetainBytes = 4 << 20
	}
	s, err := New(cfg)
	if err != nil {
		return err
	}
	failed := make(chan error)
	go func() { failed <- s.Run(context.Background()) }()
	<-s.Ready()
	for w := range 32 {
		if !storm {
			break
		}
		go func() {
			var rev int64
			key := fmt.Sprintf("/registry/storm/%d", w)
			for {
				var err error
				if rev == 0 {
					rev, err = s.Create(context.Background(), key, value3K, 0)
				} else {
					rev, err = s.Update(context.Background(), key, value3K, rev, 0)
				}
				if err != nil {
					failed <- err
					return
				}
				fmt.Fprintf(os.Stdout, "ack %s %d\n", key, rev)
			}
		}()
	}
	for w := range 8 {
		if storm {
			break
		}
		go func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("/registry/%d/%d/%d", os.Getpid(), w, i)
				rev, err := s.Create(context.Background(), key, value3K, 0)
				if err != nil {
					failed <- err
					return
				}
				// A single write to the pipe is atomic.
				fmt.Fprintf(os.Stdout, "ack %s %d\n", key, rev)
			}
		}()
	}
	return <-failed
}

// A store that is killed repeatedly in the middle of writes has every acknowledged write.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	acked := map[string]int64{}
	for round := range 3 {
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), crashDir+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		lines := bufio.NewScanner(out)
		n := 0
		for lines.Scan() {
			f := strings.Fields(lines.Text())
			require.Len(t, f, 3)
			acked[f[1]] = int64(atoi(t, f[2]))
			if n++; n == 200+2100*round {
				require.NoError(t, child.Process.Kill())
			}
		}
		_ = child.Wait()
		require.GreaterOrEqual(t, n, 200)
	}
	s, _ := open(t, Config{Dir: dir})
	kvs, _, _, err := s.Range(t.Context(), "/registry/", "", 0, 0)
	require.NoError(t, err)
	got := map[string]int64{}
	for _, kv := range kvs {
		got[kv.Key] = kv.Revision
		require.Equal(t, value3K, kv.Value)
	}
	for k, rev := range acked {
		require.Equal(t, rev, got[k], k)
	}
	t.Logf("%d acknowledged, %d stored", len(acked), len(got))
}

// A store killed right after its first write, before its database was written, becomes leader again without an
// election timeout.
func TestKilledAtOnce(t *testing.T) {
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), crashDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	require.True(t, bufio.NewScanner(out).Scan())
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	began := time.Now()
	const longest = 50_000 // that etcd accepts
	open(t, Config{Dir: dir}, func(s *Store) { s.election = longest })
	require.Less(t, time.Since(began), longest*time.Millisecond)
}

// If etcd no longer publishes raft's status, the election timeout makes a single member leader.
func TestStartsByTheElectionTimeout(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()}, func(s *Store) { s.replayed = never })
	_, err := s.Create(t.Context(), "/registry/pods/default/p", value3K, 0)
	require.NoError(t, err)
}
