package crilog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// text joins a log's lines like a reader.
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
			chunk := strings.Repeat(rapid.SampledFrom([]string{"a", "b\n", "\n", "xyz"}).Draw(t, "text"),
				rapid.IntRange(1, 20000).Draw(t, "times"))
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

// A log stays within its limits and keeps the newest lines.
func TestALogIsRotatedByWhatIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "0.log")
	f, err := Open(path)
	require.NoError(t, err)
	out := f.Stream("stdout")
	chunk := []byte(strings.Repeat(strings.Repeat("x", 1000)+"\n", 32))
	for written := 0; written < 2*MaxFiles*MaxSize; written += len(chunk) {
		_, err := out.Write(chunk)
		require.NoError(t, err)
	}
	_, err = out.Write([]byte("last\n"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Len(t, files, MaxFiles)
	for _, file := range files {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(MaxSize))
	}
	require.True(t, strings.HasSuffix(text(t, path, "stdout"), "x\nlast\n"))

	require.NoError(t, os.Truncate(path, MaxSize-1))
	f, err = Open(path) // the existing size counts
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Stream("stdout").Write([]byte("new\n"))
	require.NoError(t, err)
	require.Equal(t, "new\n", text(t, path, "stdout"))
}

// A log whose directory was removed stays within its limit.
func TestALogWithoutItsDirectoryIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	f, err := Open(filepath.Join(dir, "0.log"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // the directory cannot be created again
	out := f.Stream("stdout")
	chunk := []byte(strings.Repeat("x", 1<<20))
	for range 3 * MaxSize / len(chunk) {
		_, err := out.Write(chunk)
		require.NoError(t, err)
		info, err := f.file.Stat()
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(MaxSize))
	}
}

// After the disk was full, the log continues.
func TestALogGoesOnAfterAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	f, err := Open(path)
	require.NoError(t, err)
	out := f.Stream("stdout")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	real := f.file
	f.file = full
	n, err := out.Write([]byte("lost\n"))
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.NoError(t, full.Close())
	f.file = real
	_, err = out.Write([]byte("there\n"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, "there\n", text(t, path, "stdout"))
}
