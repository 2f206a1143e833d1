package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

var block = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestReadme pastes the blocks of the tour into one shell, as a reader does.
func TestReadme(t *testing.T) {
	h := host.New(t)
	readme, err := os.ReadFile(filepath.Join(host.Root(t), "README.md"))
	require.NoError(t, err)
	_, tour, ok := strings.Cut(string(readme), "## Five minutes")
	require.True(t, ok)
	tour, _, ok = strings.Cut(tour, "\n## ")
	require.True(t, ok)
	// What `make start` does after building.
	script := "set -euo pipefail\nhack/start.sh\n"
	for _, b := range block.FindAllStringSubmatch(tour, -1) {
		script += b[1]
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	shell := h.Command(ctx, "bash")
	shell.Dir = host.Root(t)
	shell.Stdin = strings.NewReader(script)
	out, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text := string(out)
	t.Log(text)
	require.Equal(t, 8, strings.Count(text, "Hello from a coracle!"), "three times by start.sh, five by the tour")
	for _, want := range []string{
		"hello from a task", "try 1\n", "frame 3 of 4\n", "ECHO: hello\n", "\n6\n", "kept by a volume\n", "+  hello: world\n",
	} {
		require.Contains(t, text, want)
	}
	require.Contains(t, text, "Nothing of the cluster is left")
}
