package rest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// TestATaskIsPodlings checks that a task created over REST is a Task, with the fields and words that Podling's
// clients expect.
func TestATaskIsPodlings(t *testing.T) {
	w := newWorld(t)
	a := w.do("POST", "/api/v1/tasks", `{"name":"My Task!","image":"nginx:alpine","env":{"B":"2","A":"1"},"unknown":1,
		"ports":[{"containerPort":80,"hostPort":8080}],"resources":{"requests":{"cpu":500,"memory":268435456},"limits":{"cpu":1000,"memory":536870912}}}`)
	require.Equal(t, http.StatusCreated, a.status, a.body)
	var made wire.Task
	a.into(t, &made)
	require.Regexp(t, `^my-task-[a-z0-9]{8}$`, made.TaskID)
	require.Equal(t, "My Task!", made.Name)
	require.Equal(t, wire.TaskPending, made.Status)
	require.Equal(t, "no available nodes", made.SchedulingError)
	require.Equal(t, map[string]string{"A": "1", "B": "2"}, made.Env)

	var task taskapi.Task
	require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: made.TaskID}, &task))
	require.Equal(t, "500m", task.Spec.Resources.Requests.Cpu().String())
	require.Equal(t, int32(8080), task.Spec.Ports[0].HostPort)
	require.Equal(t, int64(300), *task.Spec.ScheduleTimeoutSeconds, "a task without a node fails")
	require.Equal(t, []corev1.Toleration{taskapi.ToleratesExternal()}, task.Spec.Tolerations)

	w.node("n1")
	second := w.do("POST", "/api/v1/tasks", `{"name":"My Task!","image":"nginx:alpine"}`)
	require.Equal(t, http.StatusCreated, second.status, "names are not unique")
	require.NotContains(t, second.body, "schedulingError")

	raw := map[string]any{}
	got := w.do("GET", "/api/v1/tasks/"+made.TaskID, nil)
	require.Equal(t, http.StatusOK, got.status)
	require.NoError(t, json.Unmarshal([]byte(got.body), &raw))
	for _, field := range []string{
		"taskId", "name", "image", "env", "status", "createdAt", "healthStatus", "resources", "ports",
	} {
		require.Contains(t, raw, field)
	}
	for _, field := range []string{"nodeId", "containerId", "startedAt", "finishedAt", "error", "schedulingError"} {
		require.NotContains(t, raw, field, "Podling omits it when empty")
	}
	var all []wire.Task
	w.do("GET", "/api/v1/tasks", nil).into(t, &all)
	require.Len(t, all, 2)
}

func TestBadTasksAreRefused(t *testing.T) {
	w := newWorld(t)
	for body, says := range map[string]string{
		`{}`:          "name and image are required",
		`{"name":"a"`: "invalid request",
		`{"name":"a","image":"i","restartPolicy":"Always"}`:                          "restartPolicy",
		`{"name":"a","image":"i","livenessProbe":{"type":"tcp"}}`:                    "probes",
		`{"name":"a","image":" i"}`:                                                  "spec.image",
		`{"name":"a","image":"i","env":{"a=b":"c"}}`:                                 "spec.env",
		`{"name":"a","image":"i","resources":{"limits":{"cpu":-1}}}`:                 "negative",
		`{"name":"a","image":"i","ports":[{"containerPort":1,"hostPort":99999999}]}`: "hostPort",
		strings.Repeat("[", 40) + strings.Repeat("]", 40):                            "nested deeper",
	} {
		a := w.do("POST", "/api/v1/tasks", body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", body, a.body)
		require.Contains(t, a.says(t), says, body)
	}
	large := w.do("POST", "/api/v1/tasks", `{"name":"`+strings.Repeat("a", maxBody)+`"}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, large.status)
	plain := w.do("POST", "/api/v1/tasks", `{"name":"a","image":"i"}`, "Content-Type", "text/plain")
	require.Equal(t, http.StatusBadRequest, plain.status)
	require.Contains(t, plain.says(t), "application/json")
}

// TestAnIdempotencyKeyHasOneTask checks that a repeated request returns the first request's task, and that a
// different request with the same key is refused.
func TestAnIdempotencyKeyHasOneTask(t *testing.T) {
	w := newWorld(t)
	send := func(body string) answer { return w.do("POST", "/api/v1/tasks", body, idempotencyHeader, "order 7") }
	var first, second wire.Task
	send(`{"name":"a","image":"i"}`).into(t, &first)
	again := send(`{"name":"a","image":"i"}`)
	require.Equal(t, http.StatusCreated, again.status)
	again.into(t, &second)
	require.Equal(t, first.TaskID, second.TaskID)
	for _, other := range []string{`{"name":"a","image":"j"}`, `{"name":"b","image":"i"}`} {
		a := send(other)
		require.Equal(t, http.StatusConflict, a.status)
		require.Contains(t, a.says(t), first.TaskID)
	}
	var all []wire.Task
	w.do("GET", "/api/v1/tasks", nil).into(t, &all)
	require.Len(t, all, 1)
}

// TestListsHavePages checks that pages are complete, ordered by ID, and without duplicates.
func TestListsHavePages(t *testing.T) {
	w := newWorld(t)
	want := map[string]bool{}
	for range 7 {
		want[w.task("a")] = true
	}
	got, next, last := map[string]bool{}, "", ""
	for pages := 0; ; pages++ {
		require.Less(t, pages, 5)
		a := w.do("GET", "/api/v1/tasks?limit=2&continue="+next, nil)
		require.Equal(t, http.StatusOK, a.status)
		var page []wire.Task
		a.into(t, &page)
		for _, task := range page {
			require.False(t, got[task.TaskID])
			require.Greater(t, task.TaskID, last)
			last = task.TaskID
			got[task.TaskID] = true
		}
		if next = a.header.Get(continueHeader); next == "" {
			break
		}
	}
	require.Equal(t, want, got)
	var none []wire.Task
	w.do("GET", "/api/v1/tasks?continue=ZZZZZZZZZZZZZZZZZZZZZZZZ", nil).into(t, &none)
	require.NotNil(t, none)
	for _, bad := range []string{"limit=0", "limit=x", "limit=5001", "continue=%21", "limit=2&continue=%21"} {
		require.Equal(t, http.StatusBadRequest, w.do("GET", "/api/v1/tasks?"+bad, nil).status, bad)
	}
}

// TestACreateIsAnsweredWithTheNode checks that the answer has the node if the scheduler finds one at once, or else
// its reasons.
func TestACreateIsAnsweredWithTheNode(t *testing.T) {
	w := newWorld(t)
	w.server.schedulePatience = time.Minute
	w.node("n1")
	for name, status := range map[string]taskapi.TaskStatus{
		"fits":    {Phase: taskapi.TaskScheduled, Node: "n1"},
		"too big": {Phase: taskapi.TaskPending, Error: "0/1 nodes are available: 1 Insufficient cpu"},
	} {
		// This goroutine acts as the scheduler and the task's reconciler.
		tasks, err := w.admin.Watch(t.Context(), &taskapi.TaskList{}, ctrl.InNamespace("default"))
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			event := <-tasks.ResultChan()
			for event.Type != "ADDED" || event.Object.(*taskapi.Task).Annotations["rest.coracle.dev/name"] != name {
				event = <-tasks.ResultChan()
			}
			next := event.Object.(*taskapi.Task).DeepCopy()
			next.Status = status
			done <- w.admin.Status().Update(t.Context(), next)
		}()
		a := w.do("POST", "/api/v1/tasks", wire.CreateTask{Name: name, Image: "i"})
		require.NoError(t, <-done)
		tasks.Stop()
		var made wire.Task
		a.into(t, &made)
		require.Equal(t, status.Node, made.NodeID)
		require.Equal(t, status.Error, made.SchedulingError)
	}
}
