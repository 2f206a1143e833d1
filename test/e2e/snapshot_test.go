package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestSnapshot saves a cluster with encrypted Secrets, destroys its data, and restores it as the newest automatic
// snapshot. Clients that saw later revisions must see that the restored revisions are newer.
func TestSnapshot(t *testing.T) {
	h := host.New(t)
	h.Start("--secrets-encryption")
	h.Ctl("create secret generic s --from-literal=k=secret")
	h.Ctl("create deployment web --image=busybox --replicas=0")
	uid := h.Ctl("get deployment web -o jsonpath={.metadata.uid}")
	file := filepath.Join(h.Home, "cluster.snapshot")
	require.Contains(t, h.Run("snapshot", "save", file), "It contains the cluster's keys")
	require.Contains(t, h.Fails("snapshot", "save", file), "exists already")
	require.Contains(t, h.Fails("snapshot", "restore", file), "a cluster runs here")
	h.Ctl("delete secret s")
	seen := h.Ctl("create configmap later -o jsonpath={.metadata.resourceVersion}")

	h.Run("stop")
	require.Contains(t, h.Fails("snapshot", "restore", file), "--replace moves it aside")
	require.Contains(t, h.Fails("snapshot", "restore", "--replace"), "name the FILE to restore")
	const automatic = "20261127-060000-7.snapshot"
	require.NoError(t, os.MkdirAll(filepath.Join(h.DataDir, "snapshots"), 0o700))
	require.NoError(t, os.Rename(file, filepath.Join(h.DataDir, "snapshots", automatic)))
	require.Contains(t, h.Run("snapshot", "list"), automatic)
	require.Contains(t, h.Run("snapshot", "restore", "--replace"),
		"the cluster that was here is in "+h.DataDir+"/replaced-")
	h.Run("start")
	require.Equal(t, "c2VjcmV0", h.Ctl("get secret s -o jsonpath={.data.k}"))
	require.Equal(t, uid, h.Ctl("get deployment web -o jsonpath={.metadata.uid}"))
	require.Empty(t, h.Ctl("get configmap --ignore-not-found later -o name"))
	now := h.Ctl("create configmap now -o jsonpath={.metadata.resourceVersion}")
	require.Greater(t, len(now), len(seen), "revision %s is above %s", now, seen)
}
