package logs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
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
	write(t, path, line(3, "stdout", "P", "thr"), line(4, "stdout", "F", "ee"), line(5, "stdout", "F", ""), line(6, "stderr", "F", "six"))
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

// pipe hands over each write.
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
	require.NoError(t, Rotate(path, 1, 5, func() error { write(t, path, line(3, "stdout", "F", "three")); return nil }))
	out.until(t, "one\ntwo\nthree\n")
	write(t, path, line(4, "stdout", "F", "four"))
	close(ended)
	require.NoError(t, <-done)
	require.Equal(t, "one\ntwo\nthree\nfour\n", out.buf.String())
}

func TestRotateKeepsFive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	for i := range 9 {
		write(t, path, line(i, "stdout", "F", fmt.Sprint(i)))
		require.NoError(t, Rotate(path, 10, 5, func() error { return nil }))
	}
	write(t, path, line(9, "stdout", "F", "9"))
	require.Len(t, Files(path), 5)
	var b bytes.Buffer
	require.NoError(t, Read(t.Context(), path, Options{Tail: -1}, &b))
	require.Equal(t, "5\n6\n7\n8\n9\n", b.String())
	require.NoError(t, Rotate(path, 1<<20, 5, func() error { t.Fatal("too small to rotate"); return nil }))
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
	if err := os.WriteFile(path, []byte(strings.Repeat(line(1, "stdout", "F", strings.Repeat("x", 100)), 10000)), 0o600); err != nil {
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
