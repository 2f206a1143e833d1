package clients

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/test/host"
)

// TestGeneratedClient validates the server's OpenAPI documents, generates a client from the documents of the core
// and apps groups, compiles a program that uses it, and runs that against the server. A list declared with the
// wrong type would not compile.
func TestGeneratedClient(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	dir := t.TempDir()
	names := download(t, h, dir)
	require.Contains(t, names, "api/v1")
	require.Contains(t, names, "apis/tasks.coracle.dev/v1alpha1")

	overlay := map[string]map[string]string{"Replace": {}}
	for name, document := range map[string]string{"core": "api/v1", "apps": "apis/apps/v1"} {
		made := filepath.Join(dir, name+".go")
		foreign(t, "go", "tool", "oapi-codegen", "-generate", "types,client", "-package", name, "-o", made,
			filepath.Join(dir, file(document)))
		overlay["Replace"][filepath.Join(module(t), name, name+".go")] = made
	}
	replace := filepath.Join(dir, "overlay.json")
	raw, err := json.Marshal(overlay)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(replace, raw, 0o600))
	for name, args := range map[string][]string{
		"documents": {"./documents"}, "use": {"-tags=generated", "-overlay=" + replace, "./use"},
	} {
		foreign(t, append([]string{"go", "test", "-c", "-o", filepath.Join(dir, name)}, args...)...)
	}
	for _, name := range []string{"documents", "use"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 6*host.Patience) // validating the documents takes processor time
			defer cancel()
			c := h.Command(ctx, filepath.Join(dir, name), "-test.v")
			c.Dir = dir
			c.Env = append(c.Env, "DOCUMENTS="+dir, "KUBECONFIG="+filepath.Join(h.DataDir, "kubeconfig"))
			out, err := c.CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}

// download writes the server's OpenAPI documents to dir, and returns the groups and versions that have one.
func download(t *testing.T, h *host.Host, dir string) (names []string) {
	t.Helper()
	config := h.REST()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	get := func(path string) []byte {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
		require.NoError(t, err)
		res, err := client.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode, "%s: %s", path, raw)
		return raw
	}
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	require.NoError(t, json.Unmarshal(get("/openapi/v3"), &index))
	for name, at := range index.Paths {
		names = append(names, name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file(name)), get(at.ServerRelativeURL), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "swagger.json"), get("/openapi/v2"), 0o600))
	return names
}

func file(document string) string { return "v3_" + strings.ReplaceAll(document, "/", "_") + ".json" }

func module(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("foreign")
	require.NoError(t, err)
	return dir
}

// foreign runs a command in the module with the clients.
func foreign(t *testing.T, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir = module(t)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s: %s", strings.Join(args, " "), out)
}
