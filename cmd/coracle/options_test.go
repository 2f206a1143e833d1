package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

func TestConfigurationFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte("log-level: debug\n"), 0o600))
	link := path + ".link"
	require.NoError(t, os.Symlink(path, link))
	data, err := readConfig(link) // the file may be a link, as in a mounted ConfigMap
	require.NoError(t, err)
	require.Equal(t, "log-level: debug\n", string(data))

	require.NoError(t, os.Truncate(path, 1<<40))
	var large *bounded.TooLargeError
	_, err = readConfig(path)
	require.ErrorAs(t, err, &large)
	require.ErrorContains(t, err, path)
}

// TestOptionsComeFromFourPlaces checks that flags override the environment, which overrides the file, which
// overrides the defaults.
func TestOptionsComeFromFourPlaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	loaded := func(args ...string) (config.Config, error) {
		cmd := &cobra.Command{}
		load := configure(cmd, config.ServerPart, config.AgentPart)
		require.NoError(t, cmd.ParseFlags(append([]string{"--config", path}, args...)))
		return load()
	}
	write("cluster-domain: file.local\nmax-pods: 7\nnode-labels: [a=b, c=d]\nnode-monitor-grace-period: " +
		"90s\neviction-hard: {nodefs.available: 10%}\nlog-level: debug\n")
	t.Setenv("CORACLE_LOG_LEVEL", "warn")
	t.Setenv("CORACLE_TLS_NAMES", "one.example,two.example")
	t.Setenv("CORACLE_MERGE_KUBECONFIG", "false")
	t.Setenv("CORACLE_CLUSTER_DOMAIN", "env.local")
	c, err := loaded("--cluster-domain", "flag.local", "--node-taints", "k=v:NoSchedule")
	require.NoError(t, err)
	require.Equal(t, "flag.local", c.ClusterDomain)
	require.Equal(t, "warn", c.LogLevel)
	require.Equal(t, 7, c.MaxPods)
	require.Equal(t, []string{"a=b", "c=d"}, c.NodeLabels)
	require.Equal(t, []string{"one.example", "two.example"}, c.TLSNames)
	require.Equal(t, []string{"k=v:NoSchedule"}, c.NodeTaints)
	require.Equal(t, 90*time.Second, c.NodeMonitorGracePeriod)
	require.False(t, c.MergeKubeconfig)
	require.Equal(t, []string{"nodefs.available<10%"}, c.EvictionHard)
	require.Equal(t, config.Default().ServiceCIDR, c.ServiceCIDR)

	t.Setenv("CORACLE_MAX_PODS", "many")
	_, err = loaded()
	require.ErrorContains(t, err, "max-pods")
	write("max_pods: 7\n") // reported even though the environment sets max-pods
	_, err = loaded()
	require.ErrorContains(t, err, `unknown option "max_pods"; there are`)
	write("maximum-pods: 7\n")
	_, err = loaded()
	require.ErrorContains(t, err, `unknown option "maximum-pods"; there are`)
	require.NoError(t, os.Remove(path))
	_, err = loaded()
	require.ErrorIs(t, err, fs.ErrNotExist)
}
