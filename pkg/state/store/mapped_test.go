package store

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// mapped returns how many KiB of the store's database are mapped and resident.
func mapped(t *testing.T, dir string) (kib int) {
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	found := false
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "/member/snap/db") {
			found = strings.Contains(lines.Text(), dir)
		}
		if rest, ok := strings.CutPrefix(lines.Text(), "Rss:"); ok && found {
			_, err := fmt.Sscan(rest, &kib)
			require.NoError(t, err)
			return kib
		}
	}
	t.Fatal("the database is not mapped")
	return 0
}

// Compaction reads the whole database, and then releases its memory. Reads are served meanwhile.
func TestCompactionReleasesTheMapping(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir, Volatile: true})
	value := bytes.Repeat([]byte("x"), 64<<10)
	const n = 320
	for i := range n {
		_, err := s.Create(t.Context(), fmt.Sprintf("/registry/pods/a/%04d", i), value, 0)
		require.NoError(t, err)
	}
	read := func() {
		kvs, _, _, err := s.Range(t.Context(), "/registry/", "", 0, 0)
		require.NoError(t, err)
		require.Len(t, kvs, n)
		require.Equal(t, value, kvs[n/2].Value)
	}
	require.NoError(t, s.Compact(t.Context(), 100)) // commits what is written
	read()
	require.Greater(t, mapped(t, dir), n*64/2) // the kernel may have reclaimed some
	require.NoError(t, s.Compact(t.Context(), n/2))
	require.Less(t, mapped(t, dir), n*64/8)
	read()
	require.Greater(t, mapped(t, dir), n*64/2)
	read()
	require.Less(t, mapped(t, dir), n*64/8, "reads release it too")

	var reading sync.WaitGroup
	for range 4 {
		reading.Go(func() {
			for range 20 {
				read()
			}
		})
	}
	e, err := s.running()
	require.NoError(t, err)
	for range 200 {
		s.releaseMapping(e)
	}
	reading.Wait()
}
