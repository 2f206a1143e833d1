package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

func TestUsableMemory(t *testing.T) {
	const meminfo = "MemTotal:        4194304 kB\nMemFree:          100 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {map[string]string{}, 4 << 30},
		"version 1, limited above": {map[string]string{
			"proc/self/cgroup": "4:memory:/a/b\n1:cpu:/x\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "536870912\n",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
		}, 512 << 20},
		"version 2": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1073741824\n",
		}, 1 << 30},
		"version 2, unlimited": {
			map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 4 << 30,
		},
		"in a container": {map[string]string{
			"proc/self/cgroup": "4:memory:/docker/1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
		}, 1 << 30},
		"an odd path": {map[string]string{"proc/self/cgroup": "4:memory:/../..\nnonsense\n"}, 4 << 30},
	} {
		root := t.TempDir()
		c.files["proc/meminfo"] = meminfo
		for file, text := range c.files {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
		}
		got, err := usableMemory(root)
		require.NoError(t, err)
		require.Equal(t, c.want, got, name)
	}
	_, err := usableMemory(t.TempDir())
	require.Error(t, err)
}

func TestStoreQuota(t *testing.T) {
	p := &process{}
	quota, err := p.storeQuota()
	require.NoError(t, err)
	require.GreaterOrEqual(t, quota, int64(4*config.MinStoreQuota))
	require.LessOrEqual(t, quota, int64(config.MaxStoreQuota))
	p.StoreQuota = "512Mi"
	quota, err = p.storeQuota()
	require.NoError(t, err)
	require.Equal(t, int64(512<<20), quota)
	for _, bad := range []string{"lots", "1Mi", "9Gi", "-1"} {
		c := config.Default()
		c.StoreQuota = bad
		require.ErrorContains(t, c.Validate(), "store-quota", bad)
	}
}
