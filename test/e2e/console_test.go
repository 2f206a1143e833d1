package e2e

import (
	"context"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// notRun are the commands of `console` blocks that console.sh does not run, by their first words, and why.
var notRun = map[string]string{
	"dpkg -i":                      "installs on the machine itself; make machine does it on virtual machines",
	"apt purge":                    "the same",
	"systemctl enable":             "needs systemd; make machine does it",
	"journalctl":                   "the same",
	"sh install.sh":                "installs on the machine itself; hack/release/test.sh does it below another root",
	"sudo sh install.sh":           "the same",
	"make":                         "builds what this test runs, or runs all tests",
	"kind":                         "another program, which needs Docker",
	"coracle start --contain":      "needs a containerd that runs on the machine; make upstream tests it",
	"nats context":                 "another program",
	"coracle start --nats-context": "needs NATS servers; TestMessagesInNATS starts with such a file",
	"coracle image load dist/images-examples":                "TestExamples loads the same files",
	"coracle ctl apply -f manifests/examples/guestbook.yaml": "TestExamples applies it",
}

var comment = regexp.MustCompile(` +# .*`)

// commands returns the commands of a shell text, one a line, without comments.
func commands(text string) (all []string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if line = strings.Join(strings.Fields(comment.ReplaceAllString(line, "")), " "); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// TestConsoleBlocksAreInTheScript checks that testdata/console.sh has each command of the manual's `console` blocks,
// which have placeholders, or cannot stand in a how-to that is run as it is.
func TestConsoleBlocksAreInTheScript(t *testing.T) {
	root := host.Root(t)
	text, err := os.ReadFile("testdata/console.sh")
	require.NoError(t, err)
	script := strings.Join(commands(string(text)), "\n") + "\n"
	unused := map[string]bool{}
	for prefix := range notRun {
		unused[prefix] = true
	}
	files := []string{filepath.Join(root, "README.md")}
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			files = append(files, path)
		}
		return err
	}))
	for _, file := range files {
	lines:
		for _, line := range commands(strings.Join(blocks(t, file, "console"), "")) {
			for prefix := range notRun {
				if strings.HasPrefix(line, prefix) {
					delete(unused, prefix)
					continue lines
				}
			}
			if !strings.Contains(script, line+"\n") {
				t.Errorf("%s shows `%s`: run it in testdata/console.sh, or say in notRun why not", file, line)
			}
		}
	}
	require.Empty(t, unused, "no page shows these; remove them from notRun")
}

// TestConsoleBlocks runs testdata/console.sh.
func TestConsoleBlocks(t *testing.T) {
	if os.Getenv("CORACLE_TEST_CONSOLE") == "" {
		t.Skip("CORACLE_TEST_CONSOLE is not set: it takes a minute; run `hack/nightly.sh console`")
	}
	root := host.Root(t)
	text, err := os.ReadFile("testdata/console.sh")
	require.NoError(t, err)
	h := host.New(t)
	other := h.Beside()
	dir := t.TempDir()
	second := filepath.Join(dir, "second")
	t.Cleanup(func() {
		c := h.Command(context.Background(), h.Coracle, "delete", "--data-dir", second, "--run-dir", second+"-run")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("delete of the second cluster: %v\n%s", err, out)
		}
	})
	script := strings.NewReplacer(
		"registry.example.com", registryWithAShop(t, h), "/var/lib/coracle", h.DataDir, "/etc/coracle", dir+"/etc",
		"/var/log", dir, "/srv/second", second, "/run/second", second+"-run",
		"images/*.tar", filepath.Join(root, "dist/images/*.tar"), "SERVER", h.Address, "HUB", h.Address,
		"delete node NAME", "delete node "+other.Name, "kres NAME", `kres "$resource"`, "BESIDE", other.Name,
		"-NODE", "-"+h.Name, "=NODE", "="+h.Name, " NODE", " "+h.Name,
	).Replace(strings.Replace(string(text), "dist/images/*.tar", "images/*.tar", 1))
	file := filepath.Join(dir, "console.sh")
	require.NoError(t, os.WriteFile(file, []byte(script), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	shell := h.Command(ctx, "bash", file)
	shell.Dir = root
	shell.Env = append(shell.Environ(), "PATH="+filepath.Dir(h.Coracle)+":"+os.Getenv("PATH"), "TMPDIR="+dir,
		"besideName="+other.Name, "besideHome="+other.Home, "besideData="+other.DataDir, "besideRun="+other.RunDir)
	out, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	require.Contains(t, string(out), "Nothing of the cluster is left")
}

// registryWithAShop serves a registry with the image shop:1 on the host's loopback, and returns its address.
func registryWithAShop(t *testing.T, h *host.Host) string {
	t.Helper()
	var l net.Listener
	require.NoError(t, h.InNetwork(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
	handler := registry.New()
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
	server.Start()
	t.Cleanup(server.Close)
	here := httptest.NewServer(handler) // the same registry, in this process's network
	defer here.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(here.URL, "http://") + "/shop:1")
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, empty.Image))
	return l.Addr().String()
}
