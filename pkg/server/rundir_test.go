package server

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

type elsewhere struct {
	socket.Backend
	dir string
}

func (e elsewhere) Status(context.Context) socket.Status {
	return socket.Status{Running: true, PID: 4242, DataDir: e.dir}
}

func (elsewhere) Debug() http.Handler { return http.NotFoundHandler() }

// TestRunDirOfAnotherCluster checks that a command with the run directory of one cluster and the data directory of
// another changes neither.
func TestRunDirOfAnotherCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("deleting needs root")
	}
	dir := t.TempDir()
	c := config.Default()
	c.DataDir, c.RunDir = filepath.Join(dir, "data"), filepath.Join(dir, "run")
	require.NoError(t, os.MkdirAll(filepath.Join(c.DataDir, "store"), 0o700))
	require.NoError(t, os.MkdirAll(c.RunDir, 0o700))
	runtest.Start(t, socket.NewServer(c.RunDir, elsewhere{dir: filepath.Join(dir, "other")}))

	want := "is the run directory of the cluster in " + filepath.Join(dir, "other") + ", which runs with pid 4242"
	none := func(socket.Event) { t.Error("it began") }
	_, err := Start(t.Context(), c, exec.Command("false"), none)
	require.ErrorContains(t, err, want)
	require.ErrorContains(t, Stop(t.Context(), c, none), want)
	require.ErrorContains(t, Delete(t.Context(), c, none), want)
	require.DirExists(t, filepath.Join(c.DataDir, "store"))

	c.DataDir = filepath.Join(dir, "other")
	_, err = Start(t.Context(), c, exec.Command("false"), none)
	require.NoError(t, err, "it runs already")
}

func TestHasState(t *testing.T) {
	c := config.Default()
	c.DataDir, c.RunDir = filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "run")
	require.False(t, HasState(c))
	require.NoError(t, os.Mkdir(c.RunDir, 0o700))
	require.True(t, HasState(c))
}

// TestRunDirOfAKilledCluster checks that the run directory of a killed cluster is refused for another data
// directory, and that the error names the remedy.
func TestRunDirOfAKilledCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("deleting needs root")
	}
	dir := t.TempDir()
	killed := config.Default()
	killed.DataDir, killed.RunDir = filepath.Join(dir, "killed"), filepath.Join(dir, "run")
	require.NoError(t, os.MkdirAll(killed.DataDir, 0o700))
	require.NoError(t, os.MkdirAll(killed.RunDir, 0o700))
	c := killed
	c.DataDir = filepath.Join(dir, "data")
	none := func(socket.Event) { t.Error("it began") }
	refused := func(want string) {
		t.Helper()
		_, err := Start(t.Context(), c, exec.Command("false"), none)
		require.ErrorContains(t, err, want)
		_, err = prepare(t.Context(), c)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, Stop(t.Context(), c, none), want)
		require.ErrorContains(t, Delete(t.Context(), c, none), want)
		require.NoDirExists(t, c.DataDir, "what is refused creates no data directory")
		require.FileExists(t, filepath.Join(c.RunDir, ownerFile))
	}

	// A process that was killed while it wrote the file does not own the directory.
	file := filepath.Join(c.RunDir, ownerFile)
	for _, part := range []string{"", `{"dataDir":"/var`} {
		require.NoError(t, os.WriteFile(file, []byte(part), 0o600))
		require.NoError(t, checkRunDir(t.Context(), c))
		require.NoError(t, claimRunDir(killed))
		o, err := runDirOwner(c.RunDir)
		require.NoError(t, err)
		require.Equal(t, runOwner{killed.DataDir, instance(killed)}, o)
	}
	require.NoError(t, claimRunDir(killed), "it starts again")
	name := instance(killed)
	require.NoError(t, os.MkdirAll(filepath.Join(killed.DataDir, containersDir), 0o700),
		"of the data directory, only mount points are left")
	require.Equal(t, name, instance(killed))
	require.Error(t, claimRunDir(c), "two that start at once")

	// Conversely: the killed cluster's data directory with another run directory, such as the default.
	elsewhere := killed
	elsewhere.RunDir = filepath.Join(dir, "elsewhere")
	for _, err := range []error{
		Stop(t.Context(), elsewhere, none), Delete(t.Context(), elsewhere, none),
		func() error { _, err := prepare(t.Context(), elsewhere); return err }(),
	} {
		require.ErrorContains(t, err, "give --run-dir "+killed.RunDir)
	}
	require.NoDirExists(t, elsewhere.RunDir)
	require.DirExists(t, killed.DataDir)
	require.NoError(t, os.Rename(killed.RunDir, killed.RunDir+"-gone")) // as after a reboot
	require.NoError(t, checkRunDir(t.Context(), elsewhere))
	require.NoError(t, os.Rename(killed.RunDir+"-gone", killed.RunDir))
	refused("is the run directory of the cluster in " + killed.DataDir + ", which is not running: give --data-dir " +
		killed.DataDir)

	// A data directory that was moved and replaced by a link to it is the same directory.
	require.NoError(t, os.Rename(killed.DataDir, killed.DataDir+"-moved"))
	require.NoError(t, os.Symlink(killed.DataDir+"-moved", killed.DataDir))
	require.NoError(t, claimRunDir(killed))
	require.NoError(t, os.Remove(killed.DataDir))
	refused("`coracle delete --data-dir " + killed.DataDir + " --run-dir " + killed.RunDir + "`")

	for _, text := range []string{
		"elsewhere", `{"dataDir": "elsewhere", "instance": "coracle"}`, `{"dataDir": "/data", "instance": "../coracle"}`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o600))
		refused(file)
	}
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("/"), 1<<20), 0o600))
	refused("larger than the limit")
}
