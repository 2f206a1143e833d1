package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const facade = "http://127.0.0.1:8070"

type facadeClient struct {
	t    *testing.T
	http *http.Client
}

func newFacadeClient(t *testing.T, h *host.Host) *facadeClient {
	transport := &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}
	return &facadeClient{t, &http.Client{Transport: transport}}
}

// do sends a request, checks the status of the response, and decodes it.
func (c *facadeClient) do(status int, method, url string, body any) map[string]any {
	c.t.Helper()
	var out map[string]any
	data := c.raw(status, method, url, body)
	require.NoError(c.t, json.Unmarshal(data, &out), "%s", data)
	return out
}

func (c *facadeClient) raw(status int, method, url string, body any) []byte {
	c.t.Helper()
	data, err := json.Marshal(body)
	require.NoError(c.t, err)
	ctx, cancel := context.WithTimeout(c.t.Context(), host.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(data))
	require.NoError(c.t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	require.NoError(c.t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	require.Equal(c.t, status, resp.StatusCode, "%s %s: %s", method, url, out)
	return out
}

// workerOf acts as Podling's worker: it accepts a task at once, then reports it running and completed.
func workerOf(t *testing.T, h *host.Host, c *facadeClient) (port int, done <-chan string) {
	l, err := h.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan string, 8)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/tasks/{id}/status", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
	})
	mux.HandleFunc("GET /api/v1/tasks/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"taskId":%q,"logs":"hello from the worker\n","tail":100}`, r.PathValue("id"))
	})
	mux.HandleFunc("POST /api/v1/tasks/{id}/execute", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Task map[string]any }
		_ = json.NewDecoder(r.Body).Decode(&in)
		id := r.PathValue("id")
		w.WriteHeader(http.StatusAccepted)
		go func() {
			url := facade + "/api/v1/tasks/" + id + "/status"
			c.do(http.StatusOK, "PUT", url, map[string]any{"status": "running", "containerId": "c-" + id})
			c.do(http.StatusOK, "PUT", url, map[string]any{"status": "completed", "containerId": "c-" + id})
			ended <- fmt.Sprint(in.Task["image"])
		}()
	})
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		<-served
	})
	var at int
	_, err = fmt.Sscanf(l.Addr().String(), "127.0.0.1:%d", &at)
	require.NoError(t, err)
	return at, ended
}

// receive returns the next message of a worker, and fails if none comes in time.
func receive(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case s := <-from:
		return s
	case <-time.After(host.Patience):
		t.Fatal("the worker did not get the task")
		return ""
	}
}

// TestREST runs a task over REST in a real container, reads and follows its logs, and shows it with the podling
// link. An external worker gets a task and reports it while the server is killed.
func TestREST(t *testing.T) {
	h := host.New(t)
	h.Start("--rest-address", "127.0.0.1:8070", "--rest-insecure")
	c := newFacadeClient(t, h)
	podling := filepath.Join(t.TempDir(), "podling")
	require.NoError(t, os.Symlink(h.Coracle, podling))
	run := func(args ...string) string {
		t.Helper()
		out, err := h.Command(t.Context(), podling, append([]string{"--master", facade}, args...)...).CombinedOutput()
		require.NoError(t, err, "podling %s: %s", strings.Join(args, " "), out)
		return string(out)
	}

	short := c.do(http.StatusCreated, "POST", facade+"/api/v1/tasks", map[string]any{
		"name": "short", "image": "busybox:1.36",
	})["taskId"].(string)
	h.Ctl("wait --for=jsonpath={.status.phase}=Completed task/" + short + " --timeout=120s")
	task := c.do(http.StatusOK, "GET", facade+"/api/v1/tasks/"+short, nil)
	require.Equal(t, "completed", task["status"])
	require.Equal(t, h.Name, task["nodeId"])
	require.NotEmpty(t, task["containerId"])
	require.Contains(t, run("ps", "-t", short), "Status:        completed")

	said := run("run", "server", "--image", "coracle/hello:latest", "-e", "POD_NAME=kelp")
	require.Contains(t, said, "Task created successfully:")
	server := strings.Fields(strings.SplitAfter(said, "ID:")[1])[0]
	h.Ctl("wait --for=jsonpath={.status.phase}=Running task/" + server + " --timeout=120s")
	require.Eventually(t, func() bool {
		return strings.Contains(run("logs", server), "kelp serves on :8080")
	}, host.Patience, 50*time.Millisecond)
	require.Contains(t, run("nodes"), "online")
	var nodes []map[string]any
	require.NoError(t, json.Unmarshal(c.raw(http.StatusOK, "GET", facade+"/api/v1/nodes", nil), &nodes))
	at := fmt.Sprintf("http://%v:%v", nodes[0]["hostname"], nodes[0]["port"])
	require.Contains(t, c.do(http.StatusOK, "GET", at+"/api/v1/tasks/"+server+"/logs?tail=1", nil)["logs"],
		"kelp serves on")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, facade+"/api/v1/tasks/"+server+"/logs/stream", nil)
	require.NoError(t, err)
	stream, err := c.http.Do(req)
	require.NoError(t, err)
	line, err := bufio.NewReader(stream.Body).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, stream.Body.Close())
	require.Contains(t, line, "kelp serves on")
	require.True(t, strings.HasPrefix(line, "data: "))

	h.Ctl("cordon " + h.Name)
	port, done := workerOf(t, h, c)
	worker := c.do(http.StatusCreated, "POST", facade+"/api/v1/nodes/register", map[string]any{
		"hostname":                "127.0.0.1",
		"port":                    port,
		"cpu":                     "2",
		"memory":                  "2Gi",
		"heartbeatTimeoutSeconds": 600,
	})["nodeId"].(string)
	h.Ctl("wait --for=condition=Ready node/" + worker + " --timeout=120s")
	remote := c.do(http.StatusCreated, "POST", facade+"/api/v1/tasks", map[string]any{
		"name": "remote", "image": "nginx:alpine",
	})["taskId"].(string)
	require.Equal(t, "nginx:alpine", receive(t, done))
	h.Ctl("wait --for=jsonpath={.status.phase}=Completed task/" + remote + " --timeout=120s")
	task = c.do(http.StatusOK, "GET", facade+"/api/v1/tasks/"+remote, nil)
	require.Equal(t, worker, task["nodeId"])
	require.Equal(t, "c-"+remote, task["containerId"])
	require.Contains(t, run("logs", remote), "hello from the worker")
	forged, err := h.Command(t.Context(), "curl", "-sS", "-X", "POST", "--interface", "127.0.0.2",
		facade+"/api/v1/nodes/"+worker+"/heartbeat").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(forged), "own address")

	h.Kill()
	h.Run("start", "--rest-address", "127.0.0.1:8070", "--rest-insecure")
	c.do(http.StatusOK, "POST", facade+"/api/v1/nodes/"+worker+"/heartbeat", nil)
	after := c.do(http.StatusCreated, "POST", facade+"/api/v1/tasks", map[string]any{
		"name": "after", "image": "busybox:1.36",
	})["taskId"].(string)
	receive(t, done)
	h.Ctl("wait --for=jsonpath={.status.phase}=Completed task/" + after + " --timeout=120s")
	c.do(http.StatusOK, "POST", facade+"/api/v1/nodes/"+worker+"/deregister", nil)
	pruned := c.do(http.StatusOK, "POST", facade+"/api/v1/prune?all=true", nil)
	require.EqualValues(t, 0, pruned["nodesRemoved"])
	require.EqualValues(t, 4, pruned["tasksRemoved"])
}

// TestRESTWithAToken checks that the facade uses TLS and requires its token on a non-loopback address.
func TestRESTWithAToken(t *testing.T) {
	h := host.New(t)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("a token of some length"), 0o600))
	require.Contains(t, h.Fails("start", "--rest-address", ":8070", "--rest-insecure"), "must be on loopback")
	require.Contains(t, h.Fails("start", "--rest-address", ":8070"), "needs rest-token-file")
	h.Run("start", "--rest-address", ":8070", "--rest-token-file", token)
	curl := func(args ...string) string {
		t.Helper()
		out, err := h.Command(t.Context(), "curl", append([]string{"-ksS"}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, curl("https://198.51.100.2:8070/api/v1/tasks"), "missing or invalid token")
	require.Equal(t, "[]\n", curl("-u", "any:a token of some length", "https://198.51.100.2:8070/api/v1/tasks"))
	require.Contains(t, curl("https://198.51.100.2:8070/api/v1/openapi.json"), `"openapi":"3.0.3"`)
}

// TestASilentWorkerLosesItsTasks checks that a worker goes offline after its own timeout (default 30 s, which
// pkg/systems/tasks/externalworker tests), and that its task runs elsewhere. Later reports are refused, and
// registering again brings the worker back.
func TestASilentWorkerLosesItsTasks(t *testing.T) {
	h := host.New(t)
	h.Start("--rest-address", "127.0.0.1:8070", "--rest-insecure")
	c := newFacadeClient(t, h)
	l, err := h.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	given := make(chan string, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		given <- r.URL.Path
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		<-served
	})
	var port int
	_, err = fmt.Sscanf(l.Addr().String(), "127.0.0.1:%d", &port)
	require.NoError(t, err)
	register := func() string {
		t.Helper()
		return c.do(http.StatusCreated, "POST", facade+"/api/v1/nodes", map[string]any{
			"hostname":                "localhost",
			"port":                    port,
			"cpu":                     "1",
			"memory":                  "1Gi",
			"heartbeatTimeoutSeconds": 10,
		})["nodeId"].(string)
	}
	h.Ctl("cordon " + h.Name)
	worker := register()
	id := c.do(http.StatusCreated, "POST", facade+"/api/v1/tasks", map[string]any{
		"name":          "a",
		"image":         "busybox:1.36",
		"restartPolicy": "OnFailure",
	})["taskId"].(string)
	require.Equal(t, "/api/v1/tasks/"+id+"/execute", receive(t, given))
	c.do(http.StatusOK, "PUT", facade+"/api/v1/tasks/"+id+"/status", map[string]any{
		"status": "running", "containerId": "c1",
	})
	h.Ctl("uncordon " + h.Name)
	h.Ctl("wait --for=jsonpath={.status.phase}=Completed task/" + id + " --timeout=120s")
	task := c.do(http.StatusOK, "GET", facade+"/api/v1/tasks/"+id, nil)
	require.Equal(t, h.Name, task["nodeId"], "the task runs on the cluster's own node")
	require.Equal(t, "NodeLostnode "+worker+" has sent no heartbeat for 10s",
		h.Ctl("get task "+id+" -o jsonpath={.status.attempts[0].reason}{.status.attempts[0].message}"))
	late := c.do(http.StatusConflict, "PUT", facade+"/api/v1/tasks/"+id+"/status", map[string]any{
		"status": "failed", "containerId": "c1",
	})
	require.Contains(t, late["error"], "ended")
	var nodes []map[string]any
	require.NoError(t, json.Unmarshal(c.raw(http.StatusOK, "GET", facade+"/api/v1/nodes", nil), &nodes))
	status := map[any]any{}
	for _, n := range nodes {
		status[n["nodeId"]] = n["status"]
	}
	require.Equal(t, "offline", status[worker])
	require.Equal(t, "online", status[h.Name])
	again := register()
	require.NotEqual(t, worker, again)
	c.do(http.StatusNotFound, "POST", facade+"/api/v1/nodes/"+worker+"/heartbeat", nil)
	require.Equal(t, "online", c.do(http.StatusOK, "POST", facade+"/api/v1/nodes/"+again+"/heartbeat", nil)["status"])
}
