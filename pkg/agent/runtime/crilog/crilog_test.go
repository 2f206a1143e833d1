package crilog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// text puts a log's lines together again, as a reader does.
func text(t require.TestingT, path, stream string) string {
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var b strings.Builder
	for _, line := range strings.SplitAfter(string(raw), "\n") {
		if line == "" {
			continue
		}
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		require.Len(t, parts, 4)
		require.LessOrEqual(t, len(parts[3]), MaxLine)
		if parts[1] != stream {
			continue
		}
		b.WriteString(parts[3])
		if parts[2] == "F" {
			b.WriteByte('\n')
		} else {
			require.Equal(t, "P", parts[2])
		}
	}
	return b.String()
}

func TestWhatIsWrittenComesBack(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, "logs", string(rune('a'+n%26)), "x.log")
		os.Remove(path)
		f, err := Open(path)
		require.NoError(t, err)
		out, errs := f.Stream("stdout"), f.Stream("stderr")
		var wantOut, wantErr strings.Builder
		for range rapid.IntRange(0, 8).Draw(t, "writes") {
			chunk := strings.Repeat(rapid.SampledFrom([]string{"a", "b\n", "\n", "xyz"}).Draw(t, "text"), rapid.IntRange(1, 20000).Draw(t, "times"))
			to, want := out, &wantOut
			if rapid.Bool().Draw(t, "stderr") {
				to, want = errs, &wantErr
			}
			_, err := to.Write([]byte(chunk))
			require.NoError(t, err)
			want.WriteString(chunk)
		}
		require.NoError(t, out.Close())
		require.NoError(t, errs.Close())
		require.NoError(t, f.Close())
		require.Equal(t, wantOut.String(), text(t, path, "stdout"))
		require.Equal(t, wantErr.String(), text(t, path, "stderr"))
	})
}

func TestReopenAfterRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	f, err := Open(path)
	require.NoError(t, err)
	out := f.Stream("stdout")
	_, _ = out.Write([]byte("one\ntw"))
	require.NoError(t, os.Rename(path, path+".1"))
	require.NoError(t, f.Reopen())
	_, _ = out.Write([]byte("o\n"))
	require.Equal(t, "one\n", text(t, path+".1", "stdout"))
	require.Equal(t, "two\n", text(t, path, "stdout"))
	require.NoError(t, f.Close())
}
