package logs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const at = "2026-01-02T03:04:0%d.000000000Z"

func line(second int, stream, tag, text string) string {
	return fmt.Sprintf(at, second) + " " + stream + " " + tag + " " + text + "\n"
}

func write(t *testing.T, path string, lines ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = f.WriteString(strings.Join(lines, ""))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path+".1", line(1, "stdout", "F", "one"), line(2, "stderr", "F", "two"))
	write(t, path, line(3, "stdout", "P", "thr"), line(4, "stdout", "F", "ee"), line(5, "stdout", "F", ""),
		line(6, "stderr", "F", "six"))
	since, err := time.Parse(time.RFC3339, fmt.Sprintf(at, 3))
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		o    Options
		want string
	}{
		"all":           {Options{Tail: -1}, "one\ntwo\nthree\n\nsix\n"},
		"tail":          {Options{Tail: 3}, "three\n\nsix\n"},
		"tail 0":        {Options{Tail: 0}, ""},
		"tail rotated":  {Options{Tail: 4}, "two\nthree\n\nsix\n"},
		"tail too many": {Options{Tail: 99}, "one\ntwo\nthree\n\nsix\n"},
		"since":         {Options{Tail: -1, Since: since}, "three\n\nsix\n"},
		"limit":         {Options{Tail: -1, Limit: 6}, "one\ntw"},
		"stream":        {Options{Tail: -1, Stream: "stderr"}, "two\nsix\n"},
		"stream tail":   {Options{Tail: 1, Stream: "stdout"}, "\n"},
		"timestamps":    {Options{Tail: 1, Timestamps: true}, fmt.Sprintf(at, 6) + " six\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, Read(t.Context(), path, tt.o, &b))
			require.Equal(t, tt.want, b.String())
		})
	}
	require.Equal(t, "six\n", Tail(path, 80, 4))
}

type pipe struct {
	mu  sync.Mutex
	buf bytes.Buffer
	got chan struct{}
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.got <- struct{}{}:
	default:
	}
	return p.buf.Write(b)
}

func (p *pipe) until(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		p.mu.Lock()
		have := p.buf.String()
		p.mu.Unlock()
		if have == want {
			return
		}
		select {
		case <-p.got:
		case <-deadline:
			t.Fatalf("got %q, not %q", have, want)
		}
	}
}

func TestFollowAcrossRotationUntilTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, line(1, "stdout", "F", "one"))
	out := &pipe{got: make(chan struct{}, 1)}
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- Read(context.Background(), path, Options{Follow: true, Tail: -1, Ended: ended}, out) }()
	out.until(t, "one\n")
	write(t, path, line(2, "stdout", "F", "two"))
	out.until(t, "one\ntwo\n")
	rotate(t, path)
	write(t, path, line(3, "stdout", "F", "three"))
	out.until(t, "one\ntwo\nthree\n")
	write(t, path, line(4, "stdout", "F", "four"))
	close(ended)
	require.NoError(t, <-done)
	require.Equal(t, "one\ntwo\nthree\nfour\n", out.buf.String())
}

func rotate(t *testing.T, path string) {
	t.Helper()
	for n := 4; n > 0; n-- {
		from := path
		if n > 1 {
			from = fmt.Sprint(path, ".", n-1)
		}
		if err := os.Rename(from, fmt.Sprint(path, ".", n)); !os.IsNotExist(err) {
			require.NoError(t, err)
		}
	}
}

func TestFollowAcrossSeveralRotationsAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, line(0, "stdout", "F", "0"))
	files, err := openAll(path)
	require.NoError(t, err)
	for i := range 3 {
		rotate(t, path)
		write(t, path, line(i+1, "stdout", "F", fmt.Sprint(i+1)))
	}
	ended := make(chan struct{})
	close(ended)
	var b bytes.Buffer
	w := &writer{w: &b, o: Options{Ended: ended}}
	require.NoError(t, w.follow(t.Context(), files[0], bufio.NewReader(files[0]), path, make(chan struct{})))
	require.Equal(t, "0\n1\n2\n3\n", b.String())

	lost, err := os.Open(path)
	require.NoError(t, err)
	for range 5 {
		rotate(t, path)
		write(t, path, line(1, "stdout", "F", "x"))
	}
	f := next(lost, path)
	require.NotNil(t, f)
	defer f.Close()
	oldest, err := os.Stat(path + ".4")
	require.NoError(t, err)
	got, err := f.Stat()
	require.NoError(t, err)
	require.True(t, os.SameFile(oldest, got), "what is gone is skipped, and nothing else")
	require.NoError(t, lost.Close())
}

// Followers share an inotify instance, of which root has only 128 by default.
func TestFollowersShareAWatch(t *testing.T) {
	instances := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == "anon_inode:inotify" {
				n++
			}
		}
		return n
	}
	before := instances()
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer all.Wait()
	defer cancel()
	for i := range 60 {
		dir := filepath.Join(t.TempDir(), fmt.Sprint(i/2)) // some of them follow the same log
		require.NoError(t, os.MkdirAll(dir, 0o755))
		path := filepath.Join(dir, "0.log")
		write(t, path, line(1, "stdout", "F", "one"))
		r, w := io.Pipe()
		all.Go(func() {
			_ = Read(ctx, path, Options{Follow: true, Tail: -1}, w)
			w.Close()
		})
		lines := bufio.NewScanner(r)
		require.True(t, lines.Scan())
		require.Equal(t, "one", lines.Text())
		write(t, path, line(2, "stdout", "F", "two"))
		require.True(t, lines.Scan())
		require.Equal(t, "two", lines.Text())
	}
	require.LessOrEqual(t, instances(), before+1)
	cancel()
	all.Wait()
	require.Equal(t, before, instances())
}

// A directory that was removed and made again is watched again, also if it still had a follower.
func TestFollowADirectoryMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "0.log")
	write := func(text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		write(t, path, text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 3 {
		write(line(1, "stdout", "F", "one"))
		r, w := io.Pipe()
		all.Go(func() {
			_ = Read(ctx, path, Options{Follow: true, Tail: -1}, w)
			w.Close()
		})
		lines := bufio.NewScanner(r)
		require.True(t, lines.Scan())
		write(line(2, "stdout", "F", "two"))
		require.True(t, lines.Scan())
		require.Equal(t, "two", lines.Text())
		all.Go(func() { _, _ = io.Copy(io.Discard, r) })
		require.NoError(t, os.RemoveAll(filepath.Dir(path)))
	}
}

func TestTailIsTheEndOfAll(t *testing.T) {
	top := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(top, fmt.Sprint(n))
		var all []string // text by line
		text := ""
		for i := range rapid.IntRange(1, 3).Draw(t, "files") {
			var b strings.Builder
			for range rapid.IntRange(0, 12).Draw(t, "lines") {
				part := strings.Repeat("x",
					rapid.SampledFrom([]int{0, 1, 100, header, block - 60, block, 2*block + 3}).Draw(t, "length"))
				tag := rapid.SampledFrom([]string{"F", "F", "P"}).Draw(t, "tag")
				b.WriteString(line(1, "stdout", tag, part))
				if text += part; tag == "F" {
					all, text = append(all, text+"\n"), ""
				}
			}
			if text != "" { // lines do not span files
				b.WriteString(line(1, "stdout", "F", ""))
				all, text = append(all, text+"\n"), ""
			}
			name := path
			if k := 2 - i; k > 0 {
				name = fmt.Sprint(path, ".", k)
			}
			require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
		}
		if _, err := os.Stat(path); err != nil {
			require.NoError(t, os.WriteFile(path, nil, 0o600))
		}
		tail := rapid.Int64Range(0, 40).Draw(t, "tail")
		var b bytes.Buffer
		require.NoError(t, Read(context.Background(), path, Options{Tail: tail}, &b))
		require.Equal(t, strings.Join(all[max(0, len(all)-int(tail)):], ""), b.String())
	})
}

func TestHugeFilesAndLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	part := line(1, "stdout", "P", strings.Repeat("x", 16<<10))
	write(t, path, strings.Repeat(part, 4096)) // 64 MiB of one line
	measure := func(f func()) uint64 {
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		f()
		goruntime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	require.Less(t, measure(func() {
		require.Len(t, Tail(path, 80, 2048), 2048)
	}), uint64(2<<20), "a message is read from the end")
	var b bytes.Buffer
	require.Less(t, measure(func() {
		require.NoError(t, Read(t.Context(), path, Options{Tail: 1, Limit: 100}, &b))
	}), uint64(2<<20))
	require.Equal(t, strings.Repeat("x", 100), b.String())

	sparse := filepath.Join(t.TempDir(), "1.log") // not a log: zeros without a newline
	require.NoError(t, os.WriteFile(sparse, nil, 0o600))
	require.NoError(t, os.Truncate(sparse, 1<<40))
	require.Less(t, measure(func() {
		require.Empty(t, Tail(sparse, 0, 2048))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_ = Read(ctx, sparse, Options{Tail: 1}, io.Discard)
		_ = Read(ctx, sparse, Options{Tail: -1}, io.Discard)
	}), uint64(4<<20))
}

func TestLinksAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	write(t, secret, line(1, "stdout", "F", "secret"))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "0.log")))
	require.ErrorIs(t, Read(t.Context(), filepath.Join(dir, "0.log"), Options{Tail: -1}, io.Discard),
		bounded.ErrNotRegular)
	require.Empty(t, Tail(filepath.Join(dir, "0.log"), 80, 2048))
	require.ErrorIs(t, Read(t.Context(), filepath.Join(dir, "1.log"), Options{Tail: -1}, io.Discard), os.ErrNotExist)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(line(1, "stdout", "F", "text")))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err == nil && bytes.Count(b, []byte(" ")) < 2 {
			t.Fatalf("%q parsed as %+v", b, l)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "0.log")
	text := strings.Repeat(line(1, "stdout", "F", strings.Repeat("x", 100)), 10000)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var out bytes.Buffer
		if err := Read(context.Background(), path, Options{Tail: -1}, &out); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(out.Len()))
	}
}
