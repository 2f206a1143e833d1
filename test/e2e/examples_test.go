package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(host.Root(t), "manifests/examples", name))
	require.NoError(t, err)
	return string(text)
}

// loadImages loads the archives in a folder below dist. target is the make target that builds them.
func loadImages(t *testing.T, h *host.Host, folder, target string) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(host.Root(t), "dist", folder, "*.tar"))
	require.NoError(t, err)
	require.NotEmpty(t, archives, "run `make "+target+"` first")
	h.Run(append([]string{"image", "load"}, archives...)...)
}

// TestExamples runs all example applications together on one machine, and uses each as its documentation describes.
func TestExamples(t *testing.T) {
	h := host.New(t)
	h.Start()
	loadImages(t, h, "images-examples", "example-images")
	for _, name := range []string{"autoscale.yaml", "guestbook.yaml", "database.yaml", "pipeline.yaml"} {
		h.Apply(example(t, name))
	}
	logs := example(t, "logs.yaml")
	require.Contains(t, logs, "/var/lib/coracle/logs")
	h.Apply(strings.Replace(logs, "/var/lib/coracle/logs", filepath.Join(h.DataDir, "logs"), 1))
	t.Run("guestbook", func(t *testing.T) { testGuestbook(t, h) })
	t.Run("pipeline", func(t *testing.T) { testPipeline(t, h) })
	t.Run("logs", func(t *testing.T) { testLogCollector(t, h) })
	t.Run("database", func(t *testing.T) { testDatabase(t, h) })
	t.Run("autoscale", func(t *testing.T) { testAutoscale(t, h) })
}

func testGuestbook(t *testing.T, h *host.Host) {
	for _, name := range []string{"sts/guestbook-store", "deployment/guestbook-replica", "deployment/guestbook"} {
		h.Ctl("rollout status " + name + " --timeout=120s")
	}
	page := "http://" + h.Ctl("get service guestbook -o jsonpath={.spec.clusterIP}")
	sign := func(entry string) error {
		out, err := h.Command(t.Context(), "curl", "-fsS", "--max-time", "10", "-o", "/dev/null", "--data-urlencode",
			"entry="+entry, page).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	shows := func(want ...string) {
		t.Helper()
		for range 4 { // any page and replica may answer
			require.Eventually(t, func() bool {
				text, err := h.Curl(page)
				for _, w := range want {
					err = cmpErr(err, strings.Contains(text, "<li>"+w+"</li>"))
				}
				return err == nil
			}, host.Patience, 50*time.Millisecond)
		}
	}
	require.Eventually(t, func() bool { return sign("first") == nil }, host.Patience, 50*time.Millisecond)
	require.NoError(t, sign("<b>second</b>"))
	shows("first", "&lt;b&gt;second&lt;/b&gt;")
	h.Ctl("delete pod guestbook-store-0 --force --grace-period=0")
	shows("first") // replicas serve while the store is down
	require.Eventually(t, func() bool { return sign("third") == nil }, host.Patience, 50*time.Millisecond)
	shows("first", "third")
}

func cmpErr(err error, ok bool) error {
	if err == nil && !ok {
		return os.ErrNotExist
	}
	return err
}

func testPipeline(t *testing.T, h *host.Host) {
	h.Ctl("wait job/sum --for=condition=Complete --timeout=120s")
	require.Contains(t, h.Ctl("logs job/sum"), "sum: 500500\n")
	h.Ctl("wait job/count --for=condition=Complete --timeout=120s") // sum may read files before the last pod is counted
	require.Equal(t, "0-3", h.Ctl("get job count -o jsonpath={.status.completedIndexes}"))
	require.Equal(t, "Bound", h.Ctl("get pvc pipeline -o jsonpath={.status.phase}"))
}

func testLogCollector(t *testing.T, h *host.Host) {
	h.Ctl("rollout status ds/log-collector --timeout=120s")
	pod := strings.TrimSpace(h.Ctl("get pods -l job-name=sum -o jsonpath={.items[0].metadata.name}"))
	require.Eventually(t, func() bool {
		for line := range strings.Lines(h.Ctl("logs ds/log-collector")) {
			if strings.HasPrefix(line, "default_"+pod) && strings.HasSuffix(line, "sum: 500500\n") {
				return true
			}
		}
		return false
	}, host.Patience, 200*time.Millisecond)
}

func testDatabase(t *testing.T, h *host.Host) {
	h.Ctl("rollout status sts/db --timeout=120s")
	leader := func(ask string) string {
		out, err := h.Try("ctl", "exec", ask, "--", "/etcd", "leader")
		if err != nil {
			return ""
		}
		return strings.TrimSpace(out)
	}
	require.Eventually(t, func() bool {
		_, err := h.Try("ctl", "exec", "db-0", "--", "/etcd", "put", "a", "before")
		return err == nil
	}, host.Patience, 50*time.Millisecond)
	var was string
	require.Eventually(t, func() bool { was = leader("db-0"); return was != "" }, host.Patience, 50*time.Millisecond)
	require.Contains(t, []string{"db-0", "db-1", "db-2"}, was)
	other := map[string]string{"db-0": "db-1", "db-1": "db-2", "db-2": "db-0"}[was]
	uid := h.Ctl("get pod " + was + " -o jsonpath={.metadata.uid}")
	h.Ctl("delete pod " + was + " --force --grace-period=0")
	require.Eventually(t, func() bool {
		_, err := h.Try("ctl", "exec", other, "--", "/etcd", "put", "b", "after")
		return err == nil
	}, host.Patience, 50*time.Millisecond)
	h.Ctl("wait pod/" + was + " --for=create --timeout=120s")
	require.NotEqual(t, uid, h.Ctl("get pod "+was+" -o jsonpath={.metadata.uid}"))
	h.Ctl("wait pod/" + was + " --for=condition=Ready --timeout=120s") // the set's status may still count the old pod
	h.Ctl("rollout status sts/db --timeout=120s")
	require.Equal(t, "before\n", h.Ctl("exec "+was+" -- /etcd get a"))
	require.Equal(t, "after\n", h.Ctl("exec "+was+" -- /etcd get b"))
	require.Eventually(t, func() bool { return leader(was) != "" }, host.Patience, 50*time.Millisecond)
	require.Equal(t, "Bound Bound Bound",
		h.Ctl("get pvc data-db-0 data-db-1 data-db-2 -o jsonpath={.items[*].status.phase}"))
}

// testAutoscale checks that usage comes from real containers without an add-on, and that the autoscaler adds pods
// under load and removes them afterwards.
func testAutoscale(t *testing.T, h *host.Host) {
	h.Ctl("wait deployment/work --for=jsonpath={.status.availableReplicas}=4 --timeout=120s")
	require.Contains(t, h.Ctl("top pod --containers -l app=work"), "httpd")
	require.Regexp(t, `load-\S+ +load +\d+m +\d+Mi`, h.Ctl("top pod --containers -l app=load"))
	require.Regexp(t, h.Name+` +\d+m +\d+% +\d+Mi +\d+%`, h.Ctl("top node"))
	h.Shows("SuccessfulRescale", "describe hpa work")
	require.Contains(t,
		h.Ctl("get horizontalpodautoscalers.v1.autoscaling work -o jsonpath={.spec.targetCPUUtilizationPercentage}"), "50")
	h.Ctl("wait hpa/work --for=condition=ScalingActive --timeout=120s")
	h.Ctl("scale deployment/load --replicas=0")
	h.Ctl("wait deployment/work --for=jsonpath={.spec.replicas}=1 --timeout=120s")
}
