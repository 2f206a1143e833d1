package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// suiteModule is the module of the suites; the module in the folder foreign has its version.
const suiteModule = "sigs.k8s.io/controller-runtime/pkg/"

// suites are controller-runtime's packages whose tests start an API server and etcd with envtest.
var suites = []string{
	"builder", "cache", "client", "client/apiutil", "cluster", "controller", "controller/controllerutil", "envtest",
	"handler", "internal/controller",
	"internal/recorder", "manager", "manager/internal/integration", "metrics/filters", "reconcile", "source", "webhook",
}

// suitePatience bounds one suite. The longest, cache, waits for minutes by design.
const suitePatience = 6 * time.Minute

// TestControllerRuntime runs controller-runtime's unmodified test suites in their folders. KUBEBUILDER_ASSETS is a
// folder with three links to the binary. controller-runtime.txt lists the tests that fail, with reasons.
//
// CORACLE_TEST_SUITES names the suites to run, separated by commas (default all). CORACLE_TEST_BESIDE names a folder
// with upstream's kube-apiserver, etcd and kubectl: each suite then runs with those too, and the log has both times.
func TestControllerRuntime(t *testing.T) {
	known := readKnown(t)
	ours, beside := assets(t), os.Getenv("CORACLE_TEST_BESIDE")
	wanted := suites
	if only := os.Getenv("CORACLE_TEST_SUITES"); only != "" {
		wanted = strings.Split(only, ",")
	}
	var own, others time.Duration
	for _, suite := range wanted {
		t.Run(suite, func(t *testing.T) {
			require.Contains(t, suites, suite)
			program := filepath.Join(t.TempDir(), "suite")
			foreign(t, "go", "test", "-c", "-o", program, suiteModule+suite)
			r := run(t, suite, program, ours)
			endServers(t, ours)
			own += r.took
			t.Logf("%d passed, %d failed in %.1f s", r.passed, len(r.failed), r.took.Seconds())
			require.Positive(t, r.passed)
			for name, why := range r.failed {
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
			if beside != "" {
				u := run(t, suite, program, beside)
				others += u.took
				t.Logf("upstream: %d passed, %d failed in %.1f s", u.passed, len(u.failed), u.took.Seconds())
				for _, name := range slices.Sorted(maps.Keys(u.failed)) {
					t.Logf("fails with upstream's: %s", name)
				}
			}
		})
	}
	if beside != "" {
		t.Logf("all suites: %.1f s, upstream: %.1f s", own.Seconds(), others.Seconds())
	}
}

func assets(t *testing.T) string {
	t.Helper()
	coracle, err := filepath.Abs("../../bin/coracle")
	require.NoError(t, err)
	require.FileExists(t, coracle, "run `make build` first")
	dir := filepath.Join(t.TempDir(), "assets")
	out, err := exec.Command(coracle, "envtest", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

type report struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeText            string
		LeafNodeType            string
		State                   string
		Failure                 struct{ Message string }
	}
}

// result is the outcome of a suite: how many specs and tests passed, which failed and why, and how long it took.
type result struct {
	passed int
	failed map[string]string
	took   time.Duration
}

var (
	goTest    = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL): (\S+)`)
	suiteFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// endServers ends the servers of an assets folder that a suite left running.
func endServers(t *testing.T, assets string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range all {
		line, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(line), assets+"/") { // a process that has ended cannot be read
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		require.NoError(t, err)
		t.Logf("left running: %s", strings.ReplaceAll(string(line), "\x00", " "))
		if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			require.NoError(t, err)
		}
	}
}

func run(t *testing.T, suite, program, assets string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suitePatience)
	defer cancel()
	file := filepath.Join(t.TempDir(), "report.json")
	c := exec.CommandContext(ctx, program, "-test.v", "--ginkgo.no-color", "--ginkgo.json-report="+file)
	c.Dir = folder(t, suite)
	c.Env = append(os.Environ(), "KUBEBUILDER_ASSETS="+assets, "HOME="+t.TempDir(), "KUBECONFIG=", "USE_EXISTING_CLUSTER=")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // ginkgo then stops its servers
	c.WaitDelay = 30 * time.Second
	began := time.Now()
	out, runErr := c.CombinedOutput()
	r := result{failed: map[string]string{}, took: time.Since(began)}
	var reports []report
	if raw, err := os.ReadFile(file); err == nil {
		require.NoError(t, json.Unmarshal(raw, &reports))
	}
	for _, one := range reports {
		for _, s := range one.SpecReports {
			switch s.State {
			case "passed":
				if s.LeafNodeType == "It" {
					r.passed++
				}
			case "pending", "skipped":
			default:
				r.failed[strings.TrimSpace(strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " "))] =
					s.Failure.Message
			}
		}
	}
	runsSpecs := suiteTests(t, c.Dir)
	for _, m := range goTest.FindAllSubmatch(out, -1) {
		switch name := string(m[2]); {
		case runsSpecs[name] && len(reports) > 0:
		case string(m[1]) == "PASS":
			r.passed++
		default:
			r.failed[name] = "see the log"
		}
	}
	if runErr != nil && len(r.failed) == 0 {
		r.failed["the suite"] = runErr.Error()
	}
	if len(r.failed) > 0 {
		log := filepath.Join(os.TempDir(), "suite-"+strings.ReplaceAll(suite, "/", "-")+".log")
		require.NoError(t, os.WriteFile(log, out, 0o600))
		t.Logf("its output is in %s", log)
	}
	return r
}

func folder(t *testing.T, suite string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", suiteModule+suite)
	c.Dir = module(t)
	out, err := c.Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// suiteTests returns the names of a package's tests that run ginkgo's specs.
func suiteTests(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_suite_test.go"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range suiteFunc.FindAllSubmatch(raw, -1) {
			names[string(m[1])] = true
		}
	}
	return names
}

// readKnown reads controller-runtime.txt: comments, and lines "suite: name" of tests that cannot pass.
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
