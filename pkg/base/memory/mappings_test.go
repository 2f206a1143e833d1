package memory

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMappingsOfTheProgram(t *testing.T) {
	const program = "/bin/a program"
	const smaps = `00400000-00500000 r-xp 00000000 fe:00 1        /bin/a program
Rss: 100 kB
Anonymous: 0 kB
VmFlags: rd ex
00500000-00501000 r--p 00100000 fe:00 1        /bin/a program
Anonymous: 4 kB
00501000-00502000 rw-p 00101000 fe:00 1        /bin/a program
Anonymous: 0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 2 /lib/libc.so.6
Anonymous: 0 kB
7f0000001000-7f0000002000 r--p 00000000 00:00 0
Anonymous: 8 kB
7f0000002000-7f0000003000 r--p 00000000 00:00 0 [heap]
Anonymous: 0 kB
`
	all, err := parse(strings.NewReader(smaps))
	require.NoError(t, err)
	var found []mapping
	for _, m := range all {
		if ofProgram(m, program) {
			found = append(found, m)
		}
	}
	require.Equal(t, []mapping{{from: 0x400000, to: 0x500000, permissions: "r-xp", path: program}}, found)
	_, err = parse(strings.NewReader("a format\nto come: 0 kB\n"))
	require.Error(t, err, "nothing is released of what is not understood")
}

// TestReleaseFile: pages of the read-only mapping are released and read again with the file's content; another mapping
// of the file does not change.
func TestReleaseFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a file")
	const size = 1 << 20
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	shared, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(shared)
	private, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer unix.Munmap(private)
	private[0] = 'y'
	require.Equal(t, strings.Repeat("x", size), string(shared))
	require.Positive(t, resident(t, path, "r--s"))

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, ReleaseFile(link))
	require.Zero(t, resident(t, path, "r--s"))
	require.Equal(t, strings.Repeat("x", size), string(shared))
	require.EqualValues(t, 'y', private[0])
	require.ErrorIs(t, ReleaseFile(filepath.Join(dir, "none")), os.ErrNotExist)
}

func TestReleaseProgram(t *testing.T) { require.NoError(t, ReleaseProgram()) }

func resident(t *testing.T, path, permissions string) (kib int) {
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	found, of := false, false
	for line := range strings.Lines(string(smaps)) {
		if first, _, _ := strings.Cut(line, " "); !strings.HasSuffix(first, ":") {
			of = strings.Contains(line, permissions) && strings.HasSuffix(strings.TrimSpace(line), path)
			found = found || of
		}
		var n int
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok && of {
			_, err := fmt.Sscan(rest, &n)
			require.NoError(t, err)
			kib += n
		}
	}
	require.True(t, found, "it is mapped")
	return kib
}
