package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/test/host"
)

type sender struct {
	t      *testing.T
	client *http.Client
	base   string
}

func newSender(t *testing.T, h *host.Host) *sender {
	config := h.REST()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return &sender{t, client, config.Host + "/api/v1/namespaces/default/"}
}

// send posts a message with a query such as "wait=true". A failed connection has code 0.
func (s *sender) send(target, query, text string) (code int, body string, header http.Header) {
	res, err := s.client.Post(s.base+target+"/message?"+query, "text/plain", strings.NewReader(text))
	if err != nil {
		return 0, err.Error(), nil
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return res.StatusCode, string(out), res.Header
}

func reason(body string) string {
	var s struct{ Reason string }
	_ = json.Unmarshal([]byte(body), &s)
	return s.Reason
}

// shell is a Worker that runs the shell command in the environment variable HANDLE for each message.
const shell = `
apiVersion: workers.coracle.dev/v1alpha1
kind: Worker
metadata: {name: %s}
spec:
  image: busybox:1.36
  env: [{name: HANDLE, value: %q}]
  command:
  - sh
  - -c
  - |
    api=http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation
    trap 'exit 0' TERM
    while wget -q -S -O /tmp/message $api/next 2>/tmp/headers; do
      id=$(sed -n 's/\r//; s/^ *Lambda-Runtime-Aws-Request-Id: //p' /tmp/headers)
      eval "$HANDLE" >/tmp/reply
      wget -q -O /dev/null --post-file=/tmp/reply $api/$id/response
    done
%s`

// TestWorkers repeats the mini Kubernetes' diagram of messages on real pods, and the documented answers to invalid
// input.
func TestWorkers(t *testing.T) {
	h := host.New(t)
	h.Start()
	s := newSender(t, h)
	examples := host.Root(t) + "/manifests/examples/"
	h.Ctl("apply -f " + examples + "workers")
	h.Ctl("delete worker calculator") // its service has the name of the mini Kubernetes' service
	h.Ctl("wait service/calculator --for=delete --timeout=120s")
	t.Run("cold start", func(t *testing.T) {
		h.Ctl("wait worker/echo --for=condition=Ready --timeout=120s") // Ready needs no pod
		require.Equal(t, "0/0", strings.Fields(h.Ctl("get worker echo --no-headers"))[1])
		began := time.Now()
		code, body, _ := s.send("services/echo", "wait=true", "hello")
		t.Logf("from zero to the reply: %v", time.Since(began))
		require.Equal(t, 200, code, body)
		require.Equal(t, "ECHO: hello", body)
		require.Equal(t, "ECHO: again\n", h.Run("send", "service/echo", "again", "--wait"))
	})
	t.Run("legacy manifests", func(t *testing.T) {
		require.Contains(t, h.Run("convert", "-f", examples+"legacy/calculator.yaml"), "kind: Worker")
		out := h.Run("apply-legacy", "-f", examples+"legacy")
		require.Contains(t, out, "ReplicaSet calc -> worker/calc created")
		require.Contains(t, h.Run("apply-legacy", "-f", examples+"legacy/calculator.yaml"), "worker/calc unchanged")
		h.Ctl("wait worker/calc --for=jsonpath={.status.readyReplicas}=3 --timeout=120s")
		h.Ctl("wait pod/echo-1 --for=condition=Ready --timeout=120s")
		require.Equal(t, "DEMO: hi\n", h.Run("send", "pod/echo-1", "hi", "--wait"))
		require.Equal(t, "210\n",
			h.Run("send", "service/calculator", `{"operation": "product", "operands": [5, 6, 7]}`, "--wait"))
		seen := map[string]bool{}
		for range 40 { // each message goes to a random pod
			code, body, header := s.send("services/calculator", "wait=true", `{"operation": "sum", "operands": [1, 2]}`)
			require.Equal(t, 200, code, body)
			seen[header.Get("Coracle-Message-Pod")] = true
		}
		require.Len(t, seen, 3)
		h.Pipe("kind: ReplicaSet\nmetadata: {name: calc}\nspec: {container: template, replicas: 5}\n", "apply-legacy", "-f",
			"-")
		h.Ctl("wait worker/calc --for=jsonpath={.status.readyReplicas}=5 --timeout=120s")
		h.Ctl("scale worker/calc --replicas=2")
		h.Ctl("wait worker/calc --for=jsonpath={.status.replicas}=2 --timeout=120s")
		require.Contains(t, h.Fails("ctl", "scale", "worker/echo", "--replicas=2"), "may not be set when replicas is set")
	})
	t.Run("forwarding", func(t *testing.T) {
		h.Ctl("wait worker/aggregator worker/processor --for=jsonpath={.status.readyReplicas}=1 --timeout=120s")
		for i := range 3 {
			h.Run("send", "service/processor", fmt.Sprint("data-", i))
		}
		h.Ctl("wait worker/aggregator --for=jsonpath={.status.depth}=0 --timeout=120s")
		require.Eventually(t, func() bool {
			return strings.Contains(h.Ctl("logs -l workers.coracle.dev/worker=aggregator"),
				`"messages":["DATA-0","DATA-1","DATA-2"]`)
		}, host.Patience, 100*time.Millisecond)
	})
	t.Run("shell", func(t *testing.T) {
		require.Equal(t, "olleh\n", h.Run("send", "service/reverse", "hello", "--wait"))
	})
	t.Run("answers", func(t *testing.T) {
		code, body, _ := s.send("services/none", "wait=true", "x")
		require.Equal(t, 404, code, body)
		code, body, _ = s.send("services/kubernetes", "wait=true", "x")
		require.Equal(t, 503, code, body)
		require.Equal(t, "NoReceiver", reason(body))
		code, body, _ = s.send("services/calculator", "wait=true", "no calculation")
		require.Equal(t, 500, code, body)
		require.Equal(t, "HandlerFailed", reason(body))
		code, body, _ = s.send("services/calculator", "", strings.Repeat("x", 1<<20+1))
		require.Equal(t, 413, code, body)
		code, body, _ = s.send("services/calculator", "timeout=2h", "x")
		require.Equal(t, 400, code, body)

		h.Apply(fmt.Sprintf(shell, "slow", "sleep 600", "  queueLimit: 2\n  timeoutSeconds: 600\n"))
		h.Ctl("wait worker/slow --for=jsonpath={.status.readyReplicas}=1 --timeout=120s")
		code, body, _ = s.send("services/slow", "wait=true&timeout=1s", "never answered")
		require.Equal(t, 504, code, body)
		require.Equal(t, "HandlerTimeout", reason(body))
		full := func() bool {
			for code = 202; code == 202; code, body, _ = s.send("services/slow", "", "x") {
			}
			return code == 429 && reason(body) == "QueueFull"
		}
		require.True(t, full(), "%d %s", code, body)
		// The program takes one message. If it starts only after the first message was given up, the queue has room
		// for one more.
		require.Eventually(t, func() bool {
			return full() && strings.Fields(h.Ctl("get worker slow --no-headers"))[2] == "2"
		}, host.Patience, 100*time.Millisecond)
		require.Contains(t, h.Ctl("get --raw /metrics"), `coracle_messages_depth{namespace="default",worker="slow"} 2`)

		h.Apply(fmt.Sprintf(shell, "dies", "kill -9 1; exit 1", ""))
		h.Ctl("wait worker/dies --for=jsonpath={.status.readyReplicas}=1 --timeout=120s")
		code, body, _ = s.send("services/dies", "wait=true&timeout=30s", "x")
		require.Contains(t, []int{502, 503}, code, body)

		h.Apply("apiVersion: workers.coracle.dev/v1alpha1\nkind: Worker\nmetadata: {name: noimage}\nspec: {image: " +
			"\"localhost:1/none\"}\n")
		code, body, _ = s.send("services/noimage", "wait=true&timeout=1s", "x")
		for code == 404 { // the service does not exist yet
			code, body, _ = s.send("services/noimage", "wait=true&timeout=1s", "x")
		}
		require.Equal(t, 503, code, body)
		require.Equal(t, "NoReceiver", reason(body))
	})
	t.Run("batch", func(t *testing.T) {
		lines := ""
		for i := range 300 {
			lines += fmt.Sprintf(`{"operation": "sum", "operands": [%d, 1]}`+"\n", i)
		}
		out := h.Pipe(lines, "send", "service/calculator", "-f", "-", "--batch", "--wait")
		for i, line := range strings.Fields(out) {
			require.Equal(t, fmt.Sprint(i+1), line)
		}
		require.Len(t, strings.Fields(out), 300)
		code, body, _ := s.send("services/calculator", "batch=true&wait=true",
			"no calculation\n\n{\"operation\": \"sum\", \"operands\": [1]}")
		require.Equal(t, 200, code, body)
		require.Contains(t, body, `"code":500,"reason":"HandlerFailed"`)
		require.Contains(t, body, `"code":200,"reply":"1"`)
		code, body, _ = s.send("services/slow", "batch", "x\ny\nz\n")
		require.Equal(t, 200, code, body)
		require.Equal(t, 3, strings.Count(body, `"code":429,"reason":"QueueFull"`), body)
		code, _, _ = s.send("services/calculator", "batch", strings.Repeat("x\n", 1001))
		require.Equal(t, 413, code)
		code, _, _ = s.send("services/calculator", "batch", "\n")
		require.Equal(t, 400, code)
	})
	t.Run("poison message", func(t *testing.T) {
		h.Apply(fmt.Sprintf(shell, "grave", "echo $(cat /tmp/message) >&2", ""))
		h.Apply("apiVersion: workers.coracle.dev/v1alpha1\nkind: Worker\nmetadata: {name: poisoned}\nspec: {function: " +
			"calculator, delivery: {promise: AtLeastOnce, maxAttempts: 1, deadLetter: grave}}\n")
		h.Ctl("wait worker/grave worker/poisoned --for=jsonpath={.status.readyReplicas}=1 --timeout=120s")
		h.Run("send", "service/poisoned", "poison")
		require.Eventually(t, func() bool {
			return strings.Contains(h.Ctl("logs -l workers.coracle.dev/worker=grave"), "poison")
		}, host.Patience, 50*time.Millisecond)
		h.Shows("MessageDeadLettered", "get events")
	})
	t.Run("permissions", func(t *testing.T) {
		// Nodes send no messages.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.base+"services/calculator/message",
			strings.NewReader("forged"))
		require.NoError(t, err)
		req.Header.Set("Impersonate-User", "system:node:"+h.Name)
		req.Header.Set("Impersonate-Group", "system:nodes")
		res, err := s.client.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, 403, res.StatusCode)
		require.Contains(t, string(body), "cannot create resource")
		h.Ctl("create serviceaccount nobody")
		require.Contains(t,
			h.Fails("ctl", "auth", "can-i", "create", "services/calculator", "--subresource=message",
				"--as=system:serviceaccount:default:nobody"), "no")
		h.Ctl("create rolebinding edits --clusterrole=edit --serviceaccount=default:nobody")
		require.Contains(t,
			h.Ctl("auth can-i create services/calculator --subresource=message --as=system:serviceaccount:default:nobody"),
			"yes")
	})
}
