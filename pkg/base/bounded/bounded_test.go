package bounded

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAllRefusesWhatIsLarger(t *testing.T) {
	data, err := All(strings.NewReader("four"), 4)
	require.NoError(t, err)
	require.Equal(t, "four", string(data))

	var large *TooLargeError
	data, err = All(strings.NewReader("fiver"), 4)
	require.ErrorAs(t, err, &large)
	require.EqualValues(t, 4, large.Limit)
	require.Nil(t, data)
}

func TestFileRefusesASparseFileOfATerabyteAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(path, []byte("127.0.0.1 localhost\n"), 0o600))
	data, err := File(path, 64)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1 localhost\n", string(data))

	require.NoError(t, os.Truncate(path, 1<<40))
	var large *TooLargeError
	_, err = File(path, 1<<20)
	require.ErrorAs(t, err, &large)
	require.Contains(t, err.Error(), path)
}

func TestFileReadsRegularFilesAlone(t *testing.T) {
	dir := t.TempDir()
	secret, link, fifo := filepath.Join(dir, "secret"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(secret, link))
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, path := range []string{link, fifo, dir, "/dev/zero"} {
		_, err := File(path, 64)
		require.ErrorIs(t, err, ErrNotRegular, path)
	}
	for _, path := range []string{fifo, dir, "/dev/zero"} {
		_, err := Configured(path, 64)
		require.ErrorIs(t, err, ErrNotRegular, path)
	}
	followed, err := Configured(link, 64)
	require.NoError(t, err)
	require.Equal(t, "secret", string(followed))
	_, err = File(filepath.Join(dir, "none"), 64)
	require.ErrorIs(t, err, os.ErrNotExist)
	status, err := File("/proc/self/status", 64<<10)
	require.NoError(t, err)
	require.Contains(t, string(status), "Pid:")
}

func TestTextIsShortAndValid(t *testing.T) {
	require.Equal(t, "four", Text("four", 4))
	require.Equal(t, "f...", Text("fives", 4))
	require.Equal(t, "\uFFFD", Text("\xff\xff", 4))
	require.Equal(t, "é...", Text(strings.Repeat("é", 1<<20), 6))
	require.Equal(t, "...", Text("\xff\xffxxx", 5), "what replaces invalid bytes is longer than they are")
}
