package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

func queued(t *testing.T, h *host.Host, args ...string) []workers.QueuedMessage {
	var list workers.QueuedMessages
	out := h.Run(append(append([]string{"queue"}, args...), "-o", "json")...)
	require.NoError(t, json.Unmarshal([]byte(out), &list), out)
	return list.Items
}

// TestQueueNeedsNoPod sends messages to a worker at zero whose image cannot be pulled, kills the server, and corrects
// the image: every message is handled.
func TestQueueNeedsNoPod(t *testing.T) {
	h := host.New(t)
	h.Start()
	const manifest = "\n  scale: {max: 3, targetDepth: 50}\n  delivery: {promise: AtLeastOnce}\n"
	text := fmt.Sprintf(shell, "orders", "cat /tmp/message", manifest)
	h.Apply(strings.Replace(text, "busybox:1.36", "localhost:1/none", 1))
	h.Ctl("wait worker/orders --for=condition=Ready --timeout=120s") // at zero
	lines := ""
	for i := range 200 {
		lines += fmt.Sprintln("order", i)
	}
	ids := strings.Fields(h.Pipe(lines, "send", "service/orders", "-f", "-", "--batch"))
	require.Len(t, ids, 200, "an ID for each line")
	h.Ctl("wait worker/orders --for=jsonpath={.status.depth}=200 --timeout=60s")
	h.Kill()
	h.Run("start")
	list := queued(t, h, "orders", "list")
	require.Len(t, list, 200)
	for i := range list {
		require.Equal(t, ids[i], list[i].ID, "in their order")
		require.Equal(t, "waiting", list[i].State)
	}
	require.Contains(t, h.Run("queue", "orders", "show", ids[7]), "order 7")
	h.Apply(text)
	h.Ctl("wait worker/orders --for=jsonpath={.status.depth}=0 --timeout=300s")
	h.Ctl("wait worker/orders --for=jsonpath={.status.inFlight}=0 --timeout=60s")
	require.Equal(t, "no messages in the queue of worker orders\n", h.Run("queue", "orders", "list"))
}

// TestBacklogIsShared sends 20 messages to a worker with one pod: autoscaling adds four, and all of them get messages.
func TestBacklogIsShared(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(fmt.Sprintf(shell, "slow", "sleep 2; echo $(hostname) >&2", "  scale: {min: 1, max: 5, targetDepth: 1}\n"))
	h.Ctl("wait worker/slow --for=jsonpath={.status.readyReplicas}=1 --timeout=120s")
	h.Pipe(strings.Repeat("x\n", 20), "send", "service/slow", "-f", "-", "--batch")
	h.Ctl("wait worker/slow --for=jsonpath={.status.inFlight}=5 --timeout=120s")
	h.Ctl("wait worker/slow --for=jsonpath={.status.depth}=0 --timeout=120s")
	h.Ctl("wait worker/slow --for=jsonpath={.status.inFlight}=0 --timeout=120s")
	pods := map[string]int{}
	for _, name := range strings.Fields(h.Ctl("logs -l workers.coracle.dev/worker=slow --tail=-1")) {
		pods[name]++
	}
	require.Len(t, pods, 5, "%v", pods)
}

// TestDeadMessages follows a message that fails: it stays in the queue as dead while its dead-letter worker does not
// exist, can be read and delivered again, and goes to that worker once it exists.
func TestDeadMessages(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply("apiVersion: workers.coracle.dev/v1alpha1\nkind: Worker\nmetadata: {name: sums}\nspec: {function: " +
		"calculator, delivery: {promise: AtLeastOnce, maxAttempts: 1, deadLetter: failed}}\n")
	h.Ctl("wait worker/sums --for=jsonpath={.status.readyReplicas}=1 --timeout=120s")
	h.Ctl("wait worker/sums --for=condition=DeadLetter=False --timeout=60s")
	h.Run("send", "service/sums", "no sum")
	h.Ctl("wait worker/sums --for=jsonpath={.status.dead}=1 --timeout=60s")
	list := queued(t, h, "sums", "list", "--state", "dead")
	require.Len(t, list, 1)
	require.Contains(t, list[0].Error, "HandlerFailed")
	require.Contains(t, h.Run("queue", "sums", "list"), list[0].ID)
	require.Contains(t, h.Run("queue", "sums", "show", list[0].ID), "no sum")
	require.Contains(t, h.Run("queue", "sums", "redrive", list[0].ID), "1 message delivered again")
	h.Apply("apiVersion: workers.coracle.dev/v1alpha1\nkind: Worker\nmetadata: {name: failed}\nspec: {function: echo, " +
		"replicas: 0, delivery: {promise: AtLeastOnce}}\n")
	h.Ctl("wait worker/sums --for=condition=DeadLetter --timeout=60s")
	require.Eventually(t, func() bool {
		moved := queued(t, h, "failed", "list")
		return len(moved) == 1 && moved[0].ID == list[0].ID && strings.Contains(moved[0].DeadLetter, "HandlerFailed")
	}, host.Patience, 100*time.Millisecond)
	require.Contains(t, h.Run("queue", "failed", "list"), "dead letter: HandlerFailed")
	require.Contains(t, h.Run("queue", "sums", "redrive"), "`coracle queue failed list -n default` lists what is there")
	h.Shows("MessageDeadLettered", "describe worker sums")
	require.Contains(t, h.Run("queue", "failed", "purge"), "1 message removed")
	require.Contains(t, h.Fails("queue", "failed", "show", "none"), "has no message none")
	require.Contains(t, h.Fails("queue", "none", "list"), "there is no worker none")
	h.Run("send", "service/failed", "again")
	h.Ctl("delete worker failed")
	h.Shows("1 waiting and 0 dead messages were deleted with the worker", "get events")

	h.Run("send", "service/sums", "later", "--delay", "1h", "--expire", "2h")
	delayed := queued(t, h, "sums", "list", "--state", "delayed")
	require.Len(t, delayed, 1)
	require.WithinDuration(t, delayed[0].Arrived.Add(time.Hour), delayed[0].Due.Time, 2*time.Second)
	require.Contains(t, h.Fails("send", "service/sums", "x", "--delay", "25h"), "up to 24h")

	h.Ctl("create serviceaccount viewer")
	h.Ctl("create rolebinding views --clusterrole=view --serviceaccount=default:viewer")
	const as = " --as=system:serviceaccount:default:viewer"
	require.Contains(t, h.Ctl("auth can-i get workers/sums --subresource=queue"+as), "yes")
	require.Contains(t, h.Fails("ctl", "auth", "can-i", "delete", "workers/sums", "--subresource=queue",
		strings.TrimSpace(as)), "no")
}
