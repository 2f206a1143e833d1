package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

func TestMain(m *testing.M) {
	if mode, dir, ok := strings.Cut(os.Getenv(holdVariable), ":"); ok {
		hold(dir, mode)
		return
	}
	goleak.VerifyTestMain(m)
}

func TestOneProcessADirectory(t *testing.T) {
	dir := t.TempDir()
	require.Zero(t, holder(dir))
	first, err := lock(dir)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), holder(dir))
	_, err = lock(dir)
	require.ErrorContains(t, err, "coracle stop")
	require.NoError(t, first.Close())
	require.Zero(t, holder(dir))
	again, err := lock(dir)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestKubeconfigIsMergedAndTakenOut(t *testing.T) {
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	ours, _, err := (&adminKubeconfig{url: "https://192.0.2.1:6443", keys: keys}).issue()
	require.NoError(t, err)

	path := filepath.Join(t.TempDir(), ".kube", "config")
	require.NoError(t, mergeKubeconfig(path, ours, true))
	merged, err := clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, Context, merged.CurrentContext)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, unmergeKubeconfig(path, keys.Server.Bundle()))
	require.NoDirExists(t, filepath.Dir(path), "what we made is gone")

	theirs := api.NewConfig()
	theirs.Clusters["work"] = &api.Cluster{Server: "https://192.0.2.9"}
	theirs.AuthInfos["me"] = &api.AuthInfo{Token: "t"}
	theirs.Contexts["work"] = &api.Context{Cluster: "work", AuthInfo: "me"}
	theirs.CurrentContext = "work"
	require.NoError(t, clientcmd.WriteToFile(*theirs, path))
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, mergeKubeconfig(path, ours, true))
	merged, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, "work", merged.CurrentContext, "the user's choice stays")
	require.Contains(t, merged.Contexts, Context)
	other, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, unmergeKubeconfig(path, other.Server.Bundle()))
	merged, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Contains(t, merged.Contexts, Context, "another cluster's context is not ours to remove")
	require.NoError(t, unmergeKubeconfig(path, keys.Server.Bundle()))
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))

	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	err = (&adminKubeconfig{dataDir: t.TempDir(), keys: keys, merged: path}).write(true)
	require.ErrorContains(t, err, "cannot parse "+path)
	require.ErrorContains(t, err, "--merge-kubeconfig=false")
}

// TestKubeconfigIsTakenOutAfterARotationWithoutMerging: delete finds the context by the authority that it was written
// with.
func TestKubeconfigIsTakenOutAfterARotationWithoutMerging(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home", "config")
	keys, err := pki.Load(filepath.Join(dir, "first"))
	require.NoError(t, err)
	k := &adminKubeconfig{dataDir: dir, url: "https://192.0.2.1:6443", keys: keys, merged: home}
	require.NoError(t, k.write(true))
	later, err := pki.Load(pkiDir(dir)) // the new authority
	require.NoError(t, err)
	require.NoError(t, (&adminKubeconfig{dataDir: dir, url: k.url, keys: later}).write(true))
	cas, err := clusterCAs(dir)
	require.NoError(t, err)
	require.NoError(t, unmergeKubeconfig(home, cas))
	require.NoFileExists(t, home)
}

func TestForgetStart(t *testing.T) {
	before := pss("/proc", os.Getpid())
	require.NoError(t, forgetStart())
	require.Less(t, pss("/proc", os.Getpid()), before)
}
