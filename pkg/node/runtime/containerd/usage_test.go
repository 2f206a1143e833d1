package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// A container with many files is not walked at each reading of its usage, and no reading waits for a long walk.
func TestUsageOfManyFilesIsKept(t *testing.T) {
	r := &Runtime{config: Config{DataDir: t.TempDir()}, containers: map[string]*container{}, ctx: t.Context()}
	c := &container{record: record{Spec: runtime.Spec{ID: "a"}}}
	r.containers["a"] = c
	upper := shim.Upper(r.dir("a"))
	require.NoError(t, os.MkdirAll(upper, 0o755))
	for i := range 2000 {
		require.NoError(t, os.WriteFile(filepath.Join(upper, fmt.Sprint(i)), nil, 0o600))
	}
	r.walking.Lock() // as if a walk took long
	require.Zero(t, r.recentUsage(c))
	r.walking.Unlock()
	r.work.Wait()
	require.EqualValues(t, 2001, r.recentUsage(c).Inodes)
	require.NoError(t, os.WriteFile(filepath.Join(upper, "more"), nil, 0o600))
	c.next = c.next.Add(time.Minute)
	require.EqualValues(t, 2001, r.recentUsage(c).Inodes)
	_, inodes, err := r.DiskUsage(t.Context(), "a")
	require.NoError(t, err)
	require.EqualValues(t, 2002, inodes)
	c.next = time.Time{}
	r.recentUsage(c)
	r.work.Wait()
	require.EqualValues(t, 2002, c.layer.Inodes)
}
