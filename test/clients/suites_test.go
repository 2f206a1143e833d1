package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-dev/coracle/test/host"
)

// suiteModule is where the suites come from, in the release that the module below foreign names.
const suiteModule = "sigs.k8s.io/controller-runtime/pkg/"

// TestControllerRuntime runs test suites of controller-runtime, as they are, against an API server of ours that runs neither controllers
// nor a scheduler, as envtest has it. What may fail is named in controller-runtime.txt, each with its reason.
func TestControllerRuntime(t *testing.T) {
	known := readKnown(t)
	suites := []string{"client", "client/apiutil"}
	if !testing.Short() {
		suites = append(suites, "cache") // takes a minute
	}
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "suite")
			foreign(t, "go", "test", "-c", "-o", program, suiteModule+suite)
			h := host.New(t)
			bare(t, h)
			passed, failed := run(t, h, program)
			require.Positive(t, passed)
			t.Logf("%d passed, %d failed", passed, len(failed))
			for name, why := range failed {
				if !known[suite+": "+name] {
					t.Errorf("%s\n%s", name, why)
				}
				delete(known, suite+": "+name)
			}
			for name := range known {
				if strings.HasPrefix(name, suite+": ") {
					t.Logf("passes, and can be taken off the list: %s", name)
				}
			}
		})
	}
}

// bare runs an API server as envtest would, until the test ends. Without a token controller no pod could be created with the ServiceAccount plugin.
func bare(t *testing.T, h *host.Host) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var log bytes.Buffer
	server := h.Command(ctx, h.Coracle, "server", "--no-node", "--disable", "controllers,scheduler", "--disable-admission-plugins", "ServiceAccount", "--merge-kubeconfig=false")
	server.Stderr = &log
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) }
	server.WaitDelay = host.Patience
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		stop()
		err := server.Wait()
		if t.Failed() {
			t.Logf("server: %v\n%s", err, log.String())
		}
	})
	require.Eventually(t, func() bool {
		if _, err := os.Stat(filepath.Join(h.DataDir, "kubeconfig")); err != nil {
			return false
		}
		api, err := kubernetes.NewForConfig(h.REST())
		require.NoError(t, err)
		return api.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(time.Second).Do(t.Context()).Error() == nil
	}, host.Patience, 10*time.Millisecond)
}

// report is as much of ginkgo's report as is needed.
type report struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeText            string
		State                   string
		Failure                 struct{ Message string }
	}
}

var goTest = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL): (\S+)`)

// run runs a compiled suite and returns how many specs and tests passed, and the names of those that failed, with the reason.
func run(t *testing.T, h *host.Host, program string) (passed int, failed map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	// In a directory of its own, so that the definitions of custom resources beside the suite are not found and installed.
	dir := t.TempDir()
	file := filepath.Join(dir, "report.json")
	c := h.Command(ctx, program, "-test.v", "--ginkgo.no-color", "--ginkgo.json-report="+file)
	c.Dir = dir
	c.Env = append(c.Env, "USE_EXISTING_CLUSTER=true", "KUBECONFIG="+filepath.Join(h.DataDir, "kubeconfig"))
	out, runErr := c.CombinedOutput()
	raw, err := os.ReadFile(file)
	require.NoError(t, err, "%v\n%s", runErr, out)
	var reports []report
	require.NoError(t, json.Unmarshal(raw, &reports))
	failed = map[string]string{}
	for _, r := range reports {
		for _, s := range r.SpecReports {
			switch s.State {
			case "passed":
				passed++
			case "pending", "skipped":
			default:
				failed[strings.TrimSpace(strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " "))] = s.Failure.Message
			}
		}
	}
	specs := len(failed) > 0
	for _, m := range goTest.FindAllSubmatch(out, -1) {
		switch name := string(m[2]); {
		case string(m[1]) == "PASS":
			passed++
		case specs && (name == "TestClient" || name == "TestSource"): // runs the specs
		default:
			failed[name] = "see the log"
		}
	}
	if len(failed) == 0 {
		require.NoError(t, runErr, "%s", out)
	}
	return passed, failed
}

// readKnown reads controller-runtime.txt: comments, and "suite: name" of what cannot pass.
func readKnown(t *testing.T) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile("controller-runtime.txt")
	require.NoError(t, err)
	known := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "#") {
			known[line] = true
		}
	}
	return known
}
