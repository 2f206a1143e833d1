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

// suiteModule is the module of the suites, at the version in the module below foreign.
const suiteModule = "sigs.k8s.io/controller-runtime/pkg/"

// TestControllerRuntime runs controller-runtime's unmodified test suites against an API server that runs, as envtest's,
// neither controllers nor a scheduler. controller-runtime.txt lists the tests that may fail, with reasons.
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

// bare runs an API server as envtest would, until the test ends. The ServiceAccount plugin would need a token
// controller.
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

// report is the part of ginkgo's report that is needed.
type report struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeText            string
		State                   string
		Failure                 struct{ Message string }
	}
}

var goTest = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL): (\S+)`)

// run runs a compiled suite and returns the number of specs and tests that passed, and the names of those that failed,
// with the reason.
func run(t *testing.T, h *host.Host, program string) (passed int, failed map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	// In a directory of its own, so that the custom resource definitions beside the suite are not found and installed.
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

// readKnown reads controller-runtime.txt: comments, and "suite: name" of tests that cannot pass.
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
