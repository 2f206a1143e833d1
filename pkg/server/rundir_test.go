package server

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/control"
	"github.com/coracle-dev/coracle/pkg/run/runtest"
)

// elsewhere is a running process with another data directory.
type elsewhere struct {
	control.Backend
	dir string
}

func (e elsewhere) Status(context.Context) control.Status {
	return control.Status{Running: true, PID: 4242, DataDir: e.dir}
}

func (elsewhere) Debug() http.Handler { return http.NotFoundHandler() }

// TestRunDirOfAnotherCluster: a command that has the run directory of one cluster and the data directory of another touches neither.
func TestRunDirOfAnotherCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("deleting needs root")
	}
	dir := t.TempDir()
	c := config.Default()
	c.DataDir, c.RunDir = filepath.Join(dir, "data"), filepath.Join(dir, "run")
	require.NoError(t, os.MkdirAll(filepath.Join(c.DataDir, "store"), 0o700))
	require.NoError(t, os.MkdirAll(c.RunDir, 0o700))
	runtest.Start(t, control.NewServer(c.RunDir, elsewhere{dir: filepath.Join(dir, "other")}))

	want := "is the run directory of the cluster in " + filepath.Join(dir, "other") + ", which runs with pid 4242"
	none := func(control.Event) { t.Error("it began") }
	_, err := Start(t.Context(), c, exec.Command("false"), none)
	require.ErrorContains(t, err, want)
	require.ErrorContains(t, Stop(t.Context(), c, none), want)
	require.ErrorContains(t, Delete(t.Context(), c, none), want)
	require.DirExists(t, filepath.Join(c.DataDir, "store"))

	c.DataDir = filepath.Join(dir, "other")
	_, err = Start(t.Context(), c, exec.Command("false"), none)
	require.NoError(t, err, "it runs already")
}
