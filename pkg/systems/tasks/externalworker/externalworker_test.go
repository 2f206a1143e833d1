package externalworker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

func TestPlan(t *testing.T) {
	now := time.Now()
	at := func(status corev1.ConditionStatus, ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type:               Assigned,
				Status:             status,
				Message:            "connection refused",
				LastTransitionTime: metav1.NewTime(now.Add(-ago)),
			})
		}
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	phase := func(s corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = s } }
	volume := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name}) }
	}
	for name, c := range map[string]struct {
		change  []func(*corev1.Pod)
		offline bool
		want    Action
		why     string
	}{
		"new":                {nil, false, Announce, ""},
		"new, offline":       {nil, true, Wait, ""},
		"announced":          {[]func(*corev1.Pod){at(corev1.ConditionFalse, time.Second)}, false, Assign, ""},
		"announced, offline": {[]func(*corev1.Pod){at(corev1.ConditionFalse, time.Second)}, true, Wait, ""},
		"never accepted": {
			[]func(*corev1.Pod){at(corev1.ConditionFalse, assignPatience)}, false, Fail, "connection refused",
		},
		"read": {[]func(*corev1.Pod){at(corev1.ConditionTrue, 0), func(p *corev1.Pod) {
			p.Status.Conditions[0].Reason = readReason
		}}, false, Read, ""},
		"accepted": {[]func(*corev1.Pod){at(corev1.ConditionTrue, time.Hour)}, false, Wait, ""},
		"running": {
			[]func(*corev1.Pod){at(corev1.ConditionFalse, time.Hour), phase(corev1.PodRunning)}, false, Wait, "",
		},
		"ended":                       {[]func(*corev1.Pod){phase(corev1.PodFailed)}, false, Wait, ""},
		"deleted":                     {[]func(*corev1.Pod){deleted, at(corev1.ConditionTrue, 0)}, false, Release, ""},
		"deleted, offline":            {[]func(*corev1.Pod){deleted}, true, Release, ""},
		"with a volume":               {[]func(*corev1.Pod){volume("data")}, false, Fail, "volumes"},
		"with the volume of all pods": {[]func(*corev1.Pod){volume("kube-api-access-x")}, false, Announce, ""},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		for _, f := range c.change {
			f(p)
		}
		got, why := Plan(p, !c.offline, now)
		require.Equal(t, c.want, got, name)
		require.Contains(t, why, c.why, name)
	}
}

type fake struct {
	address netip.AddrPort
	mu      sync.Mutex
	asked   []string
	given   []wire.Execute
	// design has the tasks of a worker that has the design's paths only, by ID.
	design map[string]string
	answer func(w http.ResponseWriter, r *http.Request) // the response to a request to execute
	has    bool
}

func newFake(t *testing.T) *fake {
	f := &fake{answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.asked = append(f.asked, r.Method+" "+r.URL.Path)
		id := strings.TrimPrefix(r.URL.Path, "/api/v1/tasks/")
		switch {
		case f.design != nil && r.Method == http.MethodPost && r.URL.Path == "/api/v1/tasks":
			var in struct {
				ID    string `json:"task_id"`
				Image string
			}
			_ = json.NewDecoder(r.Body).Decode(&in)
			f.design[in.ID] = `{"status":"running","container_id":"c1","image":"` + in.Image + `"}`
		case f.design != nil && r.Method == http.MethodGet && f.design[id] != "":
			_, _ = w.Write([]byte(f.design[id]))
		case f.design != nil:
			w.WriteHeader(http.StatusNotFound)
		case r.Method == http.MethodGet && f.has:
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
		case r.Method == http.MethodPost:
			var in wire.Execute
			_ = json.NewDecoder(r.Body).Decode(&in)
			f.given = append(f.given, in)
			f.answer(w, r)
		}
	}))
	t.Cleanup(s.Close)
	f.address = netip.MustParseAddrPort(strings.TrimPrefix(s.URL, "http://"))
	return f
}

func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

type world struct {
	t *testing.T
	c client.Interface
	*fake
}

func newWorld(t *testing.T) *world {
	e := registrytest.Start(t, registrytest.Options{NoPlugins: true})
	w := &world{t: t, c: e.As("admin"), fake: newFake(t)}
	for _, name := range []string{"default", "kube-node-lease"} {
		require.NoError(t, w.c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	node, err := view.NewNode(&wire.RegisterNode{Hostname: "w1", CPU: "2", Memory: "2Gi"}, "w1", w.address, time.Now())
	require.NoError(t, err)
	renewed := metav1.NewMicroTime(time.Now().Add(time.Hour)) // so that the worker is online however slow the test is
	require.NoError(t,
		w.c.Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "w1"},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
		}))
	require.NoError(t, w.c.Create(t.Context(), node))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		done <- engine.Run(ctx, engine.Config{ClientFor: e.As, Log: slog.New(slog.DiscardHandler)},
			[]*engine.Reconciler{New()}, func() { close(ready) })
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-ready
	return w
}

func (w *world) pod(number int32, change ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	task := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "12345678-0000"},
		Spec:       tasks.TaskSpec{Image: "busybox", Tolerations: []corev1.Toleration{tasks.ToleratesExternal()}},
	}
	task.Spec.Env = []corev1.EnvVar{{Name: "K", Value: "V"}}
	p := tasks.Pod(task, &tasks.TaskAttempt{Number: number})
	p.Spec.NodeName, p.Finalizers = "w1", nil // nothing would remove the finalizer, since no reconciler of tasks runs
	for _, f := range change {
		f(p)
	}
	require.NoError(w.t, w.c.Create(w.t.Context(), p))
	return p
}

func (w *world) wait(p *corev1.Pod, ok func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	watch, err := w.c.Watch(ctx, &corev1.PodList{},
		&ctrl.ListOptions{Namespace: p.Namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", p.Name)})
	require.NoError(w.t, err)
	defer watch.Stop()
	var now corev1.Pod
	for {
		if err := w.c.Get(ctx, ctrl.ObjectKeyFromObject(p), &now); err == nil && ok(&now) {
			return &now
		} else if apierrors.IsNotFound(err) {
			return nil
		}
		select {
		case <-watch.ResultChan():
		case <-ctx.Done():
			w.t.Fatalf("the pod stayed %+v", now.Status)
		}
	}
}

func accepted(p *corev1.Pod) bool {
	c := condition(p)
	return c != nil && c.Status == corev1.ConditionTrue
}

func failed(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed }

// TestAWorkerIsGivenTasks checks that a worker gets tasks as from Podling's master, with a separate ID for each
// attempt.
func TestAWorkerIsGivenTasks(t *testing.T) {
	w := newWorld(t)
	w.wait(w.pod(1), accepted)
	w.wait(w.pod(2), accepted)
	require.Equal(t, []string{
		"GET /api/v1/tasks/a/status", "POST /api/v1/tasks/a/execute", "GET /api/v1/tasks/a~2/status",
		"POST /api/v1/tasks/a~2/execute",
	}, w.requests())
	task := w.given[0].Task
	require.Equal(t, "a", task.TaskID)
	require.Equal(t, "busybox", task.Image)
	require.Equal(t, "V", task.Env["K"])
	require.Equal(t, wire.TaskScheduled, task.Status)
	require.Equal(t, "w1", task.NodeID)
}

// TestAWorkerOfTheDesign checks that a worker that has only the paths that Podling's design draws is given tasks, which
// are read from it, since it has nowhere to report.
func TestAWorkerOfTheDesign(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	w.design = map[string]string{}
	w.mu.Unlock()
	p := w.wait(w.pod(1), func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	require.Equal(t, "podling://c1", p.Status.ContainerStatuses[0].ContainerID)
	require.Equal(t, []string{
		"GET /api/v1/tasks/a/status", "POST /api/v1/tasks/a/execute", "GET /api/v1/tasks/a", "POST /api/v1/tasks",
	}, w.requests()[:4])
	w.mu.Lock()
	w.design["a"] = `{"status":"Failed","container_id":"c1","error":"container exited with code 3"}`
	w.design["a~2"] = `not JSON`
	w.mu.Unlock()
	p = w.wait(p, failed)
	require.Equal(t, int32(3), p.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	p = w.wait(w.pod(2), failed)
	require.Contains(t, p.Status.Message, "not a task")
	require.NotContains(t, w.requests()[5:], "POST /api/v1/tasks", "it has that already")
}

// TestAPodIsNotGivenTwice checks that a worker that has the pod already, because an earlier answer was lost, does
// not get it again.
func TestAPodIsNotGivenTwice(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	w.has = true
	w.mu.Unlock()
	w.wait(w.pod(1), accepted)
	require.Equal(t, []string{"GET /api/v1/tasks/a/status"}, w.requests())
}

// TestTasksWithACommandAreGivenAsPods checks that they are, since Podling's tasks have no command, and that the
// worker's copy is removed with the pod.
func TestTasksWithACommandAreGivenAsPods(t *testing.T) {
	w := newWorld(t)
	p := w.wait(w.pod(1, func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"echo"} }), accepted)
	require.NoError(t, w.c.Delete(t.Context(), p))
	require.Nil(t, w.wait(p, func(*corev1.Pod) bool { return false }), "it is gone")
	require.Equal(t,
		[]string{
			"GET /api/v1/pods/" + p.Name + "/status", "POST /api/v1/pods/" + p.Name + "/execute",
			"DELETE /api/v1/pods/" + p.Name,
		}, w.requests())
}

// TestAWorkerThatRefuses checks that a refusal fails the pod, and that redirects are not followed.
func TestAWorkerThatRefuses(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	w.answer = func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, strings.Repeat("no", 10_000), http.StatusBadRequest)
	}
	w.mu.Unlock()
	p := w.wait(w.pod(1), failed)
	require.Contains(t, p.Status.Message, "refused the pod: status 400: nono")
	require.LessOrEqual(t, len(p.Status.Message), maxMessage)

	elsewhere := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere = true }))
	defer other.Close()
	w.mu.Lock()
	w.answer = func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, other.URL, http.StatusTemporaryRedirect)
	}
	w.mu.Unlock()
	p = w.wait(w.pod(2), func(p *corev1.Pod) bool { c := condition(p); return c != nil && c.Message != "" })
	require.Contains(t, condition(p).Message, "status 307")
	require.False(t, elsewhere)
}

// TestASilentWorkerIsOffline checks that a worker is offline 30 s after its last heartbeat, and that a later
// heartbeat alone does not bring it back.
func TestASilentWorkerIsOffline(t *testing.T) {
	w := newWorld(t)
	var node corev1.Node
	require.NoError(t, w.c.Get(t.Context(), ctrl.ObjectKey{Name: "w1"}, &node))
	var lease coordinationv1.Lease
	require.NoError(t, w.c.Get(t.Context(), ctrl.ObjectKey{Namespace: "kube-node-lease", Name: "w1"}, &lease))
	now := lease.Spec.RenewTime.Add(29 * time.Second)
	r := &reconciler{
		Env: engine.Env{
			Client: w.c,
			Cache:  w.c,
			Events: events.New(w.c, "test", "", slog.New(slog.DiscardHandler)),
			Now:    func() time.Time { return now },
		},
	}
	online, left, err := r.heartbeat(t.Context(), &node)
	require.NoError(t, err)
	require.True(t, online)
	require.Equal(t, time.Second, left)

	now = now.Add(time.Second)
	online, _, err = r.heartbeat(t.Context(), &node)
	require.NoError(t, err)
	require.False(t, online)
	require.NoError(t, w.c.Get(t.Context(), ctrl.ObjectKey{Name: "w1"}, &node))
	require.Equal(t, corev1.ConditionUnknown, node.Status.Conditions[0].Status)
	require.Equal(t, "HeartbeatTimeout", node.Status.Conditions[0].Reason)
}

// TestAWorkerThatFailsIsAskedOnce checks that a failing worker gets one request per pass, however many pods it has.
func TestAWorkerThatFailsIsAskedOnce(t *testing.T) {
	w := newWorld(t)
	var pods []corev1.Pod
	for number := range int32(5) {
		pods = append(pods, *w.pod(number+1, func(p *corev1.Pod) { p.Spec.NodeName = "elsewhere" }))
	}
	asked := 0
	client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		asked++
		return nil, errors.New("connection refused")
	})}
	r := &reconciler{Env: engine.Env{Client: w.c, Cache: w.c, Log: slog.New(slog.DiscardHandler), Now: time.Now}}
	again, err := r.pods(t.Context(), worker{client: client, base: "http://192.0.2.1:1", own: "default"}, pods, true)
	require.NoError(t, err)
	require.Equal(t, retryPause, again)
	require.Equal(t, 1, asked)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
