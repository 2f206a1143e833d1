package rest

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// TestLogsOfOurNodes checks that a client that reads logs at the address of the task's node reaches the facade.
func TestLogsOfOurNodes(t *testing.T) {
	w := newWorld(t)
	w.node("ours")
	id := w.task("a")
	pod := w.run(id, "ours", 1)
	var nodes []wire.Node
	w.do("GET", "/api/v1/nodes", nil).into(t, &nodes)
	require.Equal(t, w.url, "http://"+nodes[0].Hostname+":"+strconv.Itoa(nodes[0].Port))
	var logs wire.TaskLogs
	w.do("GET", "/api/v1/tasks/"+id+"/logs?tail=7", nil).into(t, &logs)
	require.Equal(t, wire.TaskLogs{TaskID: id, Logs: "one\ntwo\n", Tail: 7}, logs)
	kept := "/taskLogs/" + string(pod.OwnerReferences[0].UID) + "/default/" + pod.Name + "/" + string(pod.UID) +
		"?tailLines=7"
	require.Equal(t, []string{kept}, w.agent.asked)
	w.agent.mu.Lock()
	w.agent.old, w.agent.asked = true, nil
	w.agent.mu.Unlock()
	w.do("GET", "/api/v1/tasks/"+id+"/logs?tail=7", nil).into(t, &logs)
	require.Equal(t, "one\ntwo\n", logs.Logs)
	require.Equal(t, []string{kept, "/containerLogs/default/" + pod.Name + "/task?tailLines=7"}, w.agent.asked)
	for _, bad := range []string{"x", "-1", "100001"} {
		require.Equal(t, http.StatusBadRequest, w.do("GET", "/api/v1/tasks/"+id+"/logs?tail="+bad, nil).status)
	}
}

// TestLogsAreFollowed checks that each line is sent as an event as soon as it is written.
func TestLogsAreFollowed(t *testing.T) {
	w := newWorld(t)
	w.node("ours")
	id := w.task("a")
	w.run(id, "ours", 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/tasks/"+id+"/logs/stream", nil)
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	r := bufio.NewReader(resp.Body)
	next := func() string {
		t.Helper()
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		end, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "\n", end)
		return line
	}
	require.Equal(t, "data: one\n", next())
	require.Equal(t, "data: two\n", next())
	w.agent.more <- "three"
	require.Equal(t, "data: three\n", next())
	w.agent.more <- "a\rb"
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: a\n", line)
	require.Equal(t, "data: b\n", next())
	close(w.agent.more)
	_, err = r.ReadByte()
	require.Error(t, err, "the log has ended")
}

// TestLogsOfExternalWorkers checks that logs are read from the worker. Its answers cannot redirect the server or
// fill its memory.
func TestLogsOfExternalWorkers(t *testing.T) {
	w := newWorld(t)
	answer := func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write([]byte(`{"logs":"hello\n","tail":100}`))
	}
	var asked string
	fake := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked = r.URL.RequestURI()
		answer(rw, r)
	}))
	defer fake.Close()
	worker := w.register(1)
	w.move(worker, strings.TrimPrefix(fake.URL, "http://"))
	id := w.task("a")
	w.run(id, worker, 1)
	path := "/api/v1/tasks/" + id + "/logs"
	var logs wire.TaskLogs
	w.do("GET", path, nil).into(t, &logs)
	require.Equal(t, wire.TaskLogs{TaskID: id, Logs: "hello\n", Tail: 100}, logs)
	require.Equal(t, path+"?tail=100", asked)

	for name, bad := range map[string]http.HandlerFunc{
		"redirect": func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, w.agent.server.URL, http.StatusFound)
		},
		"too large": func(rw http.ResponseWriter, _ *http.Request) {
			for range 3 * maxLogs / 1024 { // more than the JSON of the longest log
				_, _ = rw.Write([]byte(strings.Repeat(" ", 1024)))
			}
		},
		"failure": func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "oh", http.StatusInternalServerError) },
	} {
		answer = bad
		require.Equal(t, http.StatusBadGateway, w.do("GET", path, nil).status, name)
	}
	require.Empty(t, w.agent.asked)
	answer = func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("{\"level\":1}\ntwo\n")) }
	w.do("GET", path, nil).into(t, &logs)
	require.Equal(t, "{\"level\":1}\ntwo\n", logs.Logs, "the design draws no form of logs")
	answer = func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("data: x\n\n")) }
	require.Equal(t, "data: x\n\n", w.do("GET", path+"/stream", nil).body)
}

func TestTheEndOfALogIsKept(t *testing.T) {
	got, err := lastBytes(strings.NewReader(strings.Repeat("a line\n", 100_000)+"the last\n"), 20)
	require.NoError(t, err)
	require.Equal(t, "a line\nthe last\n", got)
	got, err = lastBytes(strings.NewReader("short"), 20)
	require.NoError(t, err)
	require.Equal(t, "short", got)
}
