package server

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

func in(dir string) config.Config {
	c := config.Default()
	c.DataDir = dir
	return c
}

// TestInstances checks that different data directories have different instance names, and that the spelling of a
// path does not matter.
func TestInstances(t *testing.T) {
	// These two had the same name while names contained only 16 bits of a hash.
	short, one, other := map[string]string{}, "", ""
	for i := 0; other == ""; i++ {
		dir := fmt.Sprint("/srv/cluster-", i)
		sum := fmt.Sprintf("%.2x", sha256.Sum256([]byte(dir)))
		if one = short[sum]; one != "" {
			other = dir
		}
		short[sum] = dir
	}
	require.NotEqual(t, instance(in(one)), instance(in(other)))
	require.Regexp(t, `^cor[a-z2-7]{13}$`, instance(in(one)))

	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	before := instance(in(filepath.Join(dir, "data")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	require.NoError(t, os.Symlink("data", filepath.Join(dir, "link")))
	for _, path := range []string{"data", "data/", "x/../data", "link"} {
		require.Equal(t, before, instance(in(dir+"/"+path)), path)
	}
	require.Equal(t, "coracle", instance(config.Default()))

	c := in(filepath.Join(dir, "link"))
	c.RunDir = filepath.Join(dir, "link", "run")
	c = withoutLinks(c)
	require.Equal(t, []string{filepath.Join(dir, "data"), filepath.Join(dir, "data", "run")},
		[]string{c.DataDir, c.RunDir})
	require.Equal(t, dir+"/data/", withoutLinks(in(dir+"/data/")).DataDir)
}

// TestInstancesOfAnEarlierVersion checks that clusters of earlier versions keep their instance names, which their
// containers and links use.
func TestInstancesOfAnEarlierVersion(t *testing.T) {
	c := in(t.TempDir())
	long := instance(c)
	require.NoError(t, os.Mkdir(filepath.Join(c.DataDir, containersDir), 0o700))
	short := instance(c)
	require.NoError(t, markNames(c))
	require.Equal(t, fmt.Sprintf("cor%.2x", sha256.Sum256([]byte(c.DataDir))), short)
	require.Equal(t, short, instance(c))

	c = in(t.TempDir())
	require.NoError(t, markNames(c))
	require.NoError(t, os.Mkdir(filepath.Join(c.DataDir, containersDir), 0o700))
	require.NoError(t, markNames(c))
	require.Len(t, instance(c), len(long))
}
