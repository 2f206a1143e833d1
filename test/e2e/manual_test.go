package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// blocks returns the fenced code blocks of a kind in a Markdown file.
func blocks(t *testing.T, file, kind string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)```"+kind+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}

// TestManual runs the commands of the tutorials and how-to pages in one shell, as a reader does: the first hour
// without its end, the other tutorials, each how-to in a subshell, and the end.
func TestManual(t *testing.T) {
	h := host.New(t)
	root := host.Root(t)
	pages := func(kind string) (files []string) {
		for _, pattern := range []string{"pkg/cli/manual/pages", "pkg/systems/*/manual"} {
			found, err := filepath.Glob(filepath.Join(root, pattern, kind, "*.md"))
			require.NoError(t, err)
			files = append(files, found...)
		}
		slices.Sort(files)
		return files
	}
	hour := blocks(t, filepath.Join(root, "pkg/cli/manual/pages/tutorial/first-hour.md"), "sh")
	// `make start` runs this after the build.
	script := "set -euo pipefail\nhack/start.sh\n"
	script += strings.Join(hour[:len(hour)-1], "")
	for _, file := range append(pages("tutorial"), pages("howto")...) {
		if name := filepath.Base(file); name != "first-hour.md" {
			script += "echo \"== " + name + " at $SECONDS s\"\n(\nset -euo pipefail\n"
			script += strings.Join(blocks(t, file, "sh"), "") + ")\n"
		}
	}
	script += "echo == end at $SECONDS s\n" + hour[len(hour)-1]
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	shell := h.Command(ctx, "bash")
	shell.Dir = root
	shell.Env = append(shell.Environ(), "TMPDIR="+t.TempDir())
	shell.Stdin = strings.NewReader(script)
	out, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text := string(out)
	t.Log(text)
	require.Equal(t, 8, strings.Count(text, "Hello from a coracle!"), "three times by start.sh, five by the tour")
	for _, want := range []string{
		"hello from a task", "try 1\n", "frame 3 of 4\n", "ECHO: hello\n", "\n6\n", "kept by a volume\n", "+  hello: world\n",
		"part 19\n", "shop\n", "Nothing of the cluster is left",
	} {
		require.Contains(t, text, want)
	}
}
