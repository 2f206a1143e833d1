package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestBadOptions checks that each error is one line with the problem and its fix, and that no process starts.
func TestBadOptions(t *testing.T) {
	h := host.New(t)
	file := filepath.Join(h.Home, "config.yaml")
	write := func(text string) []string {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return []string{"start", "--config", file}
	}
	for want, args := range map[string][]string{
		"unknown flag: --dta-dir":           {"start", "--dta-dir", "/x"},
		`unknown option "data_dir"`:         write("data_dir: /x\n"),
		"cluster-cidr":                      {"start", "--cluster-cidr", "10.0.0.0"},
		"no such file":                      {"start", "--config", "/nowhere"},
		"is not a URL of the form":          {"agent", "--join", "server:6443", "--token", "x"},
		"the task's name is missing; usage": {"run", "--image", "busybox"},
		"coracle is not running here":       {"image", "ls"},
		"there is no cluster to talk to":    {"ps"},
	} {
		out := h.Fails(args...)
		require.Contains(t, out, want)
		require.Less(t, strings.Count(out, "\n"), 3, out)
	}
	require.NoFileExists(t, filepath.Join(h.DataDir, "coracle.pid"))
}

// TestPortInUse checks that the port's owner is unaffected and that the error names a remedy.
func TestPortInUse(t *testing.T) {
	h := host.New(t)
	stop := h.Command(t.Context(), "busybox", "nc", "-l", "-p", "6443")
	require.NoError(t, stop.Start())
	defer func() { _ = stop.Process.Kill(); _ = stop.Wait() }()
	require.Eventually(t, func() bool {
		out, err := h.Command(t.Context(), "ss", "-ltn").Output()
		return err == nil && strings.Contains(string(out), ":6443 ")
	}, host.Patience, 10e6)
	out := h.Fails("start")
	require.Contains(t, out, "--listen")
	require.Equal(t, 1, strings.Count(out, "\n"), out)
	require.Empty(t, processes(t, h.DataDir))
}

// TestBadObjects checks that errors have upstream's words and name the field.
func TestBadObjects(t *testing.T) {
	h := host.New(t)
	h.Start()
	broken := func(manifest string) string {
		file := filepath.Join(h.Home, "broken.yaml")
		require.NoError(t, os.WriteFile(file, []byte(manifest), 0o600))
		return h.Fails("ctl", "apply", "-f", file)
	}
	require.Contains(t, broken("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}"),
		"spec.containers[0].image: Required value")
	require.Contains(t,
		broken("apiVersion: v1\nkind: Pod\nmetadata: {name: A_b}\nspec: {containers: [{name: a, image: a}]}"),
		`metadata.name: Invalid value: "A_b"`)
	require.Contains(t, broken("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {contaners: []}"),
		`unknown field "spec.contaners"`)
	require.Contains(t, broken("apiVersion: v1\nkind: Boat\nmetadata: {name: a}"), `no matches for kind "Boat"`)
	require.Contains(t, broken("apiVersion: tasks.coracle.dev/v1alpha1\nkind: Task\nmetadata: {name: a}\nspec: {}"),
		"spec.image: Required value")
	require.Contains(t, h.Fails("ctl", "get", "pod", "nobody"), `pods "nobody" not found`)
	require.Contains(t, h.Fails("ctl", "create", "ns", "default"), "already exists")
	big := strings.Repeat("x", 4<<20)
	require.Contains(t, broken("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: big}\ndata: {a: "+big+"}"), "too")
}
