package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// batched is a Worker whose program was written for an SQS queue with AWS Lambda.
const batched = `
apiVersion: workers.coracle.dev/v1alpha1
kind: Worker
metadata: {name: sqs}
spec:
  image: busybox:1.36
  command: [/programs/sqs]
  replicas: REPLICAS
  batch: {windowSeconds: 1}
  delivery: {promise: AtLeastOnce, maxAttempts: 3}
  template:
    spec:
      nodeSelector: {kubernetes.io/hostname: NODE}
      containers: [{name: worker, volumeMounts: [{name: programs, mountPath: /programs}]}]
      volumes: [{name: programs, hostPath: {path: DIR}}]
`

// TestBatches checks that an unmodified handler of SQS events gets batches, that its partial failures and errors have
// the messages delivered again one by one, and that a kill of the server loses no message of a batch.
func TestBatches(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // for the pods
	build := exec.Command("go", "build", "-trimpath", "-o", dir, "./sqs")
	build.Dir = filepath.Join(host.Root(t), "test/clients/foreign/workers")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	h := host.New(t)
	other := h.Beside()
	h.Start()
	a := startAgent(t, other, joinWords(t, h))
	defer func() { a.end() }()
	h.Ctl("wait node/" + other.Name + " --for=condition=Ready --timeout=120s")
	other.Load()
	handled := func() map[string]int {
		text, _ := os.ReadFile(filepath.Join(dir, "handled"))
		lines := map[string]int{}
		for line := range strings.Lines(string(text)) {
			lines[strings.TrimSpace(line)]++
		}
		return lines
	}
	apply := func(node, replicas string) {
		h.Apply(strings.NewReplacer("DIR", dir, "NODE", node, "REPLICAS", replicas).Replace(batched))
	}
	for _, node := range []string{other.Name, h.Name} {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "handled")))
		apply(node, "0")
		h.Ctl("wait worker/sqs --for=jsonpath={.status.replicas}=0 --timeout=120s")
		h.Pipe("good\npoison\nfails\ntwice\n", "send", "service/sqs", "-f", "-", "--batch")
		apply(node, "1")
		h.Ctl("wait worker/sqs --for=jsonpath={.status.dead}=1 --timeout=120s")
		require.Eventually(t, func() bool { return handled()["twice 3"] > 0 }, host.Patience, 20*time.Millisecond)
		lines := handled()
		require.Positive(t, lines["batch 4"], "the first attempt")
		for line, times := range map[string]int{
			"good 1": 1, "good 2": 1, "good 3": 0, "poison 1": 1, "poison 2": 1, "twice 2": 1, "twice 3": 1, "fails 3": 1,
		} {
			require.Equal(t, times, lines[line], "%s: %v", line, lines)
		}
		dead := queued(t, h, "sqs", "list", "--state", "dead")
		require.Contains(t, dead[0].Error, "HandlerFailed: the program named the message in batchItemFailures")
		require.Contains(t, h.Run("queue", "sqs", "purge"), "1 message removed")
		require.Empty(t, strings.TrimSpace(h.Run("send", "service/sqs", "good", "--wait")), "an empty reply")
		require.Contains(t, h.Fails("send", "service/sqs", "fails", "--wait"), "in batchItemFailures")
	}
	h.Pipe("kill\nafterwards\n", "send", "service/sqs", "-f", "-", "--batch")
	killed := filepath.Join(dir, "killed")
	require.Eventually(t, func() bool {
		_, err := os.Stat(killed)
		return err == nil
	}, host.Patience, 20*time.Millisecond)
	h.Kill()
	h.Run("start")
	h.Ctl("wait worker/sqs --for=jsonpath={.status.depth}=0 --timeout=180s")
	require.Eventually(t, func() bool {
		lines := handled()
		return lines["kill 1"]+lines["kill 2"] == 2 && lines["afterwards 1"]+lines["afterwards 2"] == 2
	}, host.Patience, 50*time.Millisecond, "the batch is delivered again")
	require.Contains(t, h.Fails("ctl", "patch", "worker", "sqs", "--type=merge", "-p",
		`{"spec": {"delivery": {"replies": "other"}}}`), "may not be set with batch")
}
