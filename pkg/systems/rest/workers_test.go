package rest

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// TestAWorkersLife checks that a worker can register, send heartbeats, leave and come back.
func TestAWorkersLife(t *testing.T) {
	w := newWorld(t)
	id := w.register(8081)
	var node corev1.Node
	get := func() *corev1.Node {
		require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Name: id}, &node))
		return &node
	}
	require.True(t, view.Online(get()))
	require.Equal(t, "127.0.0.1:8081", node.Annotations[view.AddressAnnotation])
	require.Equal(t, "2", node.Status.Allocatable.Pods().String(), "Podling's slots")
	require.Contains(t, node.Spec.Taints, corev1.Taint{Key: taskapi.External, Effect: corev1.TaintEffectNoSchedule})

	var list []wire.Node
	w.do("GET", "/api/v1/nodes", nil).into(t, &list)
	require.Equal(t, id, list[0].NodeID)
	require.Equal(t, 8081, list[0].Port)
	require.Equal(t, wire.NodeOnline, list[0].Status)
	require.Equal(t, wire.Resources{CPU: 2000, Memory: 2 << 30}, list[0].Resources.Capacity)
	require.WithinDuration(t, time.Now(), list[0].LastHeartbeat, time.Minute)

	for _, beat := range []answer{
		w.do("POST", "/api/v1/nodes/"+id+"/heartbeat", nil),
		w.do("POST", "/api/v1/heartbeat", `{"node_id":"`+id+`","capacity":2,"running_tasks":0}`),
	} {
		require.Equal(t, http.StatusOK, beat.status, beat.body)
	}
	var lease coordinationv1.Lease
	require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Namespace: "kube-node-lease", Name: id}, &lease))
	require.True(t, lease.Spec.RenewTime.After(list[0].LastHeartbeat))

	gone := w.do("POST", "/api/v1/nodes/"+id+"/deregister", nil)
	require.Equal(t, http.StatusOK, gone.status)
	require.JSONEq(t, `{"message":"node deregistered successfully"}`, gone.body)
	require.True(t, apierrors.IsNotFound(w.admin.Get(t.Context(), ctrl.ObjectKey{Name: id}, &corev1.Node{})),
		"tasks and metrics of a Node end with it")
	require.Equal(t, http.StatusNotFound, w.do("POST", "/api/v1/nodes/"+id+"/heartbeat", nil).status)
}

// TestRegistrationsAreFenced checks that only the ID of an address's latest registration may report. A heartbeat that
// is replayed for an earlier registration, or forged for another address or for one of our own nodes, is refused.
func TestRegistrationsAreFenced(t *testing.T) {
	w := newWorld(t)
	w.node("ours")
	first := w.register(8081)
	second := w.register(8081)
	require.NotEqual(t, first, second)
	replayed := w.do("POST", "/api/v1/nodes/"+first+"/heartbeat", nil)
	require.Equal(t, http.StatusNotFound, replayed.status)
	require.Equal(t, "node not found", replayed.says(t))
	require.Equal(t, http.StatusNotFound, w.do("POST", "/api/v1/heartbeat", `{"nodeId":"`+first+`"}`).status)
	require.Equal(t, http.StatusNotFound, w.do("POST", "/api/v1/nodes/"+first+"/deregister", nil).status)
	require.Equal(t, http.StatusForbidden, w.do("POST", "/api/v1/nodes/ours/heartbeat", nil).status)
	require.Equal(t, http.StatusForbidden, w.do("POST", "/api/v1/nodes/ours/deregister", nil).status)

	w.move(second, "192.0.2.7:8081")
	forged := w.do("POST", "/api/v1/nodes/"+second+"/heartbeat", nil)
	require.Equal(t, http.StatusForbidden, forged.status)
	require.Contains(t, forged.says(t), "own address")
	require.Equal(t, http.StatusForbidden, w.do("POST", "/api/v1/nodes/"+second+"/deregister", nil).status)
}

func (w *world) move(id, address string) {
	w.t.Helper()
	var node corev1.Node
	require.NoError(w.t, w.admin.Get(w.t.Context(), ctrl.ObjectKey{Name: id}, &node))
	next := node.DeepCopy()
	next.Annotations[view.AddressAnnotation] = address
	require.NoError(w.t, w.admin.Update(w.t.Context(), next))
}

// TestWorkersAreWhereTheyAre checks that a registration cannot make the server send requests to another address, or
// to itself.
func TestWorkersAreWhereTheyAre(t *testing.T) {
	w := newWorld(t)
	own := w.url[strings.LastIndex(w.url, ":")+1:]
	for body, says := range map[string]string{
		`{"hostname":"192.0.2.1","port":80,"cpu":"1","memory":"1Gi"}`:                             "not the address",
		`{"hostname":"169.254.169.254","port":80,"cpu":"1","memory":"1Gi"}`:                       "not the address",
		`{"hostname":"no such host","port":80,"cpu":"1","memory":"1Gi"}`:                          "cannot be resolved",
		`{"hostname":"` + strings.Repeat("a", 300) + `","port":80,"cpu":"1","memory":"1Gi"}`:      "cannot be resolved",
		`{"hostname":"127.0.0.1","port":` + own + `,"cpu":"1","memory":"1Gi"}`:                    "this server",
		`{"hostname":"127.0.0.1","port":70000,"cpu":"1","memory":"1Gi"}`:                          "port",
		`{"hostname":"127.0.0.1","port":-1,"cpu":"1","memory":"1Gi"}`:                             "port",
		`{"hostname":"127.0.0.1","port":80,"cpu":"1","memory":"1Gi","heartbeatTimeoutSeconds":1}`: "heartbeatTimeoutSeconds must be from 2 to 3600",
		`{"hostname":"127.0.0.1","port":80,"cpu":"x","memory":"1Gi"}`:                             "invalid cpu format",
		`{"hostname":"127.0.0.1","port":80,"cpu":"1","memory":"1Zi"}`:                             "invalid memory format",
		`{"hostname":"127.0.0.1","port":80,"cpu":"1e300","memory":"1Gi"}`:                         "invalid cpu format",
		`{"hostname":"127.0.0.1","port":80,"cpu":"-1","memory":"1Gi"}`:                            "positive",
		`{"hostname":"127.0.0.1","port":80,"cpu":"1"}`: "hostname, port, cpu, " +
			"and memory are required",
		`{"hostname":"127.0.0.1","port":80,"capacity":-1}`:      "capacity must be",
		`{"hostname":"127.0.0.1","port":80,"capacity":1000001}`: "capacity must be",
	} {
		a := w.do("POST", "/api/v1/nodes/register", body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", body, a.body)
		require.Contains(t, a.says(t), says, body)
	}
}

// TestHowLongAWorkerMayBeSilent checks the timeouts: Podling's workers send a heartbeat every 30 s, its design says
// every 10 s.
func TestHowLongAWorkerMayBeSilent(t *testing.T) {
	w := newWorld(t)
	for path, seconds := range map[string]time.Duration{"/api/v1/nodes/register": 90, "/api/v1/nodes": 30} {
		for says, want := range map[string]time.Duration{"": seconds, `,"heartbeatTimeoutSeconds":7`: 7} {
			a := w.do("POST", path, `{"hostname":"127.0.0.1","port":8081,"cpu":"2","memory":"2Gi"`+says+`}`)
			require.Equal(t, http.StatusCreated, a.status, a.body)
			var n wire.Node
			a.into(t, &n)
			var node corev1.Node
			require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Name: n.NodeID}, &node))
			require.Equal(t, want*time.Second, taskapi.Patience(&node, 0), path+says)
		}
	}
}

// TestTheDesignsWorker checks the registration and the heartbeats that Podling's design draws: a capacity in tasks, and
// tasks that the worker runs for others.
func TestTheDesignsWorker(t *testing.T) {
	w := newWorld(t)
	var n struct {
		ID       string `json:"node_id"`
		Capacity int
	}
	w.do("POST", "/api/v1/nodes", `{"hostname":"localhost","port":8081,"capacity":10}`).into(t, &n)
	require.Equal(t, 10, n.Capacity)
	beat := func(load, capacity, allocatable string) {
		t.Helper()
		a := w.do("POST", "/api/v1/heartbeat", `{"node_id":"`+n.ID+`"`+load+`}`)
		require.Equal(t, http.StatusOK, a.status, a.body)
		var node corev1.Node
		require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Name: n.ID}, &node))
		require.Equal(t, capacity, node.Status.Capacity.Pods().String())
		require.Equal(t, allocatable, node.Status.Allocatable.Pods().String())
		require.Equal(t, "10", node.Status.Allocatable.Cpu().String())
	}
	beat("", "10", "10")
	beat(`,"capacity":20,"running_tasks":3`, "20", "17")
	beat("", "20", "17")
	w.run(w.task("a"), n.ID, 1)
	beat(`,"capacity":20,"running_tasks":3`, "20", "18")
	beat(`,"running_tasks":50`, "20", "0")
	a := w.do("POST", "/api/v1/heartbeat", `{"node_id":"`+n.ID+`","running_tasks":-1}`)
	require.Equal(t, http.StatusBadRequest, a.status)
}

// TestTheOwnerReports checks that the worker that runs a task reports its progress and end. Reports from other
// workers, for an ended attempt, or that contradict earlier reports are refused.
func TestTheOwnerReports(t *testing.T) {
	w := newWorld(t)
	w.node("ours")
	worker := w.register(8081)
	id := w.task("a")
	status := "/api/v1/tasks/" + id + "/status"
	require.Equal(t, http.StatusConflict, w.do("PUT", status, `{"status":"running"}`).status, "it has no attempt yet")
	pod := w.run(id, worker, 1)
	report := func(path, body string, want int) answer {
		t.Helper()
		a := w.do("PUT", path, body)
		require.Equal(t, want, a.status, a.body)
		return a
	}
	var got wire.Task
	report(status, `{"status":"running"}`, http.StatusOK)
	report(status, `{"status":"running","containerId":"c1"}`, http.StatusOK).into(t, &got)
	require.Equal(t, wire.TaskRunning, got.Status)
	require.Equal(t, "c1", got.ContainerID)
	require.Equal(t, worker, got.NodeID)
	report(status, `{"status":"scheduled"}`, http.StatusBadRequest)
	report(status, `{"status":"completed","containerId":"c2"}`, http.StatusConflict)
	w.move(worker, "192.0.2.7:8081")
	report(status, `{"status":"completed","containerId":"c1"}`, http.StatusForbidden)
	w.move(worker, "127.0.0.1:8081")
	report(status, `{"status":"failed","containerId":"c1","error":"container exited with code 3"}`, http.StatusOK)
	report(status, `{"status":"failed","containerId":"c1","error":"container exited with code 3"}`, http.StatusOK)
	report(status, `{"status":"completed","containerId":"c1"}`, http.StatusConflict)
	report(status, `{"status":"running","containerId":"c1"}`, http.StatusConflict)
	var p corev1.Pod
	require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKeyFromObject(pod), &p))
	require.Equal(t, corev1.PodFailed, p.Status.Phase)
	end := p.Status.ContainerStatuses[0].State.Terminated
	require.Equal(t, int32(3), end.ExitCode)
	require.Equal(t, "podling://c1", end.ContainerID)

	// The first attempt has ended. Its worker cannot report for the second one.
	now := int64(0)
	require.NoError(t, w.admin.Delete(t.Context(), pod, &ctrl.DeleteOptions{GracePeriodSeconds: &now}))
	var task taskapi.Task
	require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: id}, &task))
	w.run(id, worker, 2)
	report(status, `{"status":"completed","containerId":"c1"}`, http.StatusConflict)
	report("/api/v1/tasks/"+id+"~2/status", `{"status":"running","containerId":"c9"}`, http.StatusOK)
	for _, unknown := range []string{"nothing", id + "~x", id + "~1", id + "~2~1~1", "~2"} {
		report("/api/v1/tasks/"+unknown+"/status", `{"status":"running"}`, http.StatusNotFound)
	}

	// Only agents report tasks on our own nodes.
	other := w.task("b")
	w.run(other, "ours", 1)
	report("/api/v1/tasks/"+other+"/status", `{"status":"completed"}`, http.StatusForbidden)
}

func TestTheOwnerReportsOnPods(t *testing.T) {
	w := newWorld(t)
	worker := w.register(8081)
	a := w.do("POST", "/api/v1/pods", `{"name":"web","containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]}`)
	require.Equal(t, http.StatusCreated, a.status, a.body)
	var made wire.Pod
	a.into(t, &made)
	status := "/api/v1/pods/" + made.PodID + "/status"
	require.Equal(t, http.StatusNotFound, w.do("PUT", status, `{"status":"running"}`).status, "it is on no node")
	w.bind(made.PodID, worker)
	require.Equal(t, http.StatusOK, w.do("PUT", status, `{"status":"scheduled"}`).status)
	require.Equal(t, http.StatusOK, w.do("PUT", status, `{"status":"running"}`).status)
	sick := w.do("PUT", status,
		`{"status":"scheduled","message":"Container a is unhealthy","reason":"Unhealthy","containers":[{"name":"a","status":"running","healthStatus":"unhealthy"}]}`)
	require.Equal(t, http.StatusOK, sick.status, sick.body)
	var now corev1.Pod
	require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: made.PodID}, &now))
	require.Equal(t, corev1.PodRunning, now.Status.Phase, "it runs nevertheless")
	require.Equal(t, "Unhealthy", now.Status.Reason)
	require.Len(t, now.Status.ContainerStatuses, 2)
	for _, c := range now.Status.ContainerStatuses {
		require.Equal(t, c.Name != "a", c.Ready)
		require.NotNil(t, c.State.Running)
	}
	require.Equal(t, corev1.RestartPolicyNever, now.Spec.RestartPolicy, "Podling's pods end with their containers")
	end := w.do("PUT", status, `{"status":"failed","message":"it failed","reason":"Error","containers":[
		{"name":"a","image":"i","status":"terminated","exitCode":0,"containerId":"c1"},{"name":"b","image":"i","status":"terminated","exitCode":2,"error":"bad"}]}`)
	require.Equal(t, http.StatusOK, end.status, end.body)
	var got wire.Pod
	end.into(t, &got)
	require.Equal(t, wire.PodFailed, got.Status)
	require.Equal(t, 0, *got.Containers[0].ExitCode)
	require.Equal(t, "c1", got.Containers[0].ContainerID)
	require.Equal(t, 2, *got.Containers[1].ExitCode)
	require.Equal(t, "bad", got.Containers[1].Error)
	require.NotNil(t, got.FinishedAt)
	require.Equal(t, http.StatusConflict, w.do("PUT", status, `{"status":"running"}`).status)
	require.Equal(t, http.StatusBadRequest, w.do("PUT", status, `{"status":"asleep"}`).status)
	require.Equal(t, http.StatusConflict,
		w.do("PUT", status, `{"status":"failed","containers":[{"name":"a","containerId":"c7"}]}`).status)
	require.Equal(t, http.StatusBadRequest, w.do("PUT", status, `{"status":"failed","containers":[{"name":"z"}]}`).status)
}

// TestTasksOfANodeThatIsGone checks that requests for their logs and reports fail with the node's name, and that
// the tasks are still listed.
func TestTasksOfANodeThatIsGone(t *testing.T) {
	w := newWorld(t)
	worker := w.register(8081)
	id := w.task("a")
	w.run(id, worker, 1)
	var node corev1.Node
	require.NoError(t, w.admin.Get(t.Context(), ctrl.ObjectKey{Name: worker}, &node))
	require.NoError(t, w.admin.Delete(t.Context(), &node))
	report := w.do("PUT", "/api/v1/tasks/"+id+"/status", `{"status":"completed"}`)
	require.Equal(t, http.StatusNotFound, report.status)
	require.Equal(t, "node not found", report.says(t))
	for _, path := range []string{"/logs", "/logs/stream"} {
		logs := w.do("GET", "/api/v1/tasks/"+id+path, nil)
		require.Equal(t, http.StatusNotFound, logs.status)
		require.Equal(t, "worker node not found", logs.says(t))
	}
	require.Equal(t, http.StatusOK, w.do("GET", "/api/v1/tasks/"+id, nil).status)
}
