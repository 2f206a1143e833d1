package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const triggersManifest = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: calls}
spec:
  rules:
  - host: calls.example.com
    http:
      paths:
      - {path: /echo, pathType: Prefix, backend: {resource: {apiGroup: workers.coracle.dev, kind: Worker, name: echo}}}
      - {path: /slow, pathType: Prefix, backend: {resource: {apiGroup: workers.coracle.dev, kind: Worker, name: slow}}}
      - {path: /none, pathType: Prefix, backend: {resource: {apiGroup: workers.coracle.dev, kind: Worker, name: none}}}
      - {path: /task, pathType: Prefix, backend: {resource: {apiGroup: tasks.coracle.dev, kind: Task, name: none}}}
---
apiVersion: workers.coracle.dev/v1alpha1
kind: Worker
metadata: {name: minutes}
spec:
  function: aggregate
  triggers: [{schedule: "* * * * *", data: "a minute has passed"}]
`

// TestWorkerTriggers calls a worker over an Ingress, by a schedule, and with the replies of another worker.
func TestWorkerTriggers(t *testing.T) {
	h := host.New(t)
	h.Start()
	examples := host.Root(t) + "/manifests/examples/workers/"
	h.Apply(triggersManifest)
	h.Apply(fmt.Sprintf(shell, "slow", "sleep 600 & wait", ""))
	h.Ctl("apply -f " + examples + "echo.yaml -f " + examples + "replies.yaml")
	h.Ctl("wait ingress/calls --for=jsonpath={.status.loadBalancer.ingress} --timeout=120s")
	h.Ctl("wait worker/slow worker/shout worker/listener --for=condition=Ready --timeout=120s")
	client := &http.Client{Transport: &http.Transport{DialContext: h.Dial}, Timeout: host.Patience}
	t.Cleanup(client.CloseIdleConnections)
	do := func(method, path string, body io.Reader) (int, string, error) {
		req, err := http.NewRequest(method, "http://"+h.Address+path, body)
		if err != nil {
			return 0, "", err
		}
		req.Host = "calls.example.com"
		res, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return res.StatusCode, strings.TrimSpace(string(text)), err
	}
	t.Run("over HTTP", func(t *testing.T) {
		for _, c := range []struct {
			method, path, body string
			code               int
			want               string
		}{
			{"POST", "/echo/any?path", "hello", 200, "ECHO: hello"}, // from no pod
			{"GET", "/echo", "", 405, "POST"},
			{"POST", "/echo", strings.Repeat("x", 1<<20+1), 413, "at most"},
			{"POST", "/none", "hello", 404, "does not exist"},
			{"POST", "/task", "hello", 503, "no endpoint"},
		} {
			code, text, err := do(c.method, c.path, strings.NewReader(c.body))
			require.NoError(t, err)
			require.Equal(t, c.code, code, "%s %s: %s", c.method, c.path, text)
			require.Contains(t, text, c.want)
		}
		h.Shows("not supported as backends", "get events --field-selector reason=IngressRefused -o jsonpath={..message}")
	})
	t.Run("many callers", func(t *testing.T) {
		var all sync.WaitGroup
		var mu sync.Mutex
		codes := map[int]int{}
		began := time.Now()
		for n := range 400 {
			all.Go(func() {
				code, text, err := do("POST", "/echo", strings.NewReader(fmt.Sprint("caller ", n)))
				if err == nil && code == 200 && text != fmt.Sprint("ECHO: caller ", n) {
					code = -1
				}
				mu.Lock()
				defer mu.Unlock()
				codes[code]++
			})
		}
		all.Wait()
		t.Logf("400 callers in %v: %v", time.Since(began), codes)
		require.Equal(t, map[int]int{200: 400}, codes)
	})
	t.Run("deleted while it is called", func(t *testing.T) {
		codes := make(chan int, 2)
		for range 2 { // the second one waits in the queue
			go func() {
				code, _, _ := do("POST", "/slow", strings.NewReader("hello"))
				codes <- code
			}()
		}
		h.Ctl("wait worker/slow --for=jsonpath={.status.depth}=1 --timeout=120s")
		h.Ctl("delete worker slow")
		require.ElementsMatch(t, []int{502, 503}, []int{<-codes, <-codes})
		code, _, err := do("POST", "/slow", strings.NewReader("hello"))
		require.NoError(t, err)
		require.Equal(t, 404, code)
	})
	t.Run("replies", func(t *testing.T) {
		h.Run("send", "service/shout", "is anybody there")
		h.Shows("SHOUT: is anybody there", "logs -l workers.coracle.dev/worker=listener")
		h.Ctl("wait worker/shout --for=condition=Replies --timeout=120s")
		h.Ctl("delete worker listener")
		h.Ctl("wait worker/shout --for=condition=Replies=false --timeout=120s")
		h.Run("send", "service/shout", "nobody is there")
		h.Shows("the worker does not exist", "get events --field-selector reason=MessageDead -o jsonpath={..message}")
	})
	t.Run("schedule", func(t *testing.T) {
		h.Ctl("wait worker/minutes --for=jsonpath={.status.triggers[0].lastScheduleTime} --timeout=120s")
		h.Shows("a minute has passed", "logs -l workers.coracle.dev/worker=minutes")
		require.NotEmpty(t, h.Ctl("get worker minutes -o jsonpath={.status.triggers[0].nextScheduleTime}"))
	})
}
