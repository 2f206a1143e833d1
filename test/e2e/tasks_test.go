package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

func taskUntil(h *host.Host, name, path, value string) {
	h.Ctl(fmt.Sprintf("wait task/%s --for=jsonpath={%s}=%s --timeout=120s", name, path, value))
}

func readTask(t *testing.T, h *host.Host, name string) (task tasks.Task) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(h.Ctl("get task "+name+" -o json")), &task))
	return task
}

func exitCode(t *testing.T, h *host.Host, args ...string) (string, int) {
	t.Helper()
	out, err := h.Try(args...)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, out)
	return out, exit.ExitCode()
}

// TestTasks follows the life of tasks on real containers with the commands that users run.
func TestTasks(t *testing.T) {
	h := host.New(t)
	h.Start()

	t.Run("wait streams the output and exits with the task's code", func(t *testing.T) {
		require.Contains(t,
			h.Run("run", "hi", "--image", "busybox:1.36", "-e", "WHO=you", "--wait", "--", "sh", "-c",
				"echo hello $WHO from $TASK_NAME"), "hello you from hi\n")
		out, code := exitCode(t, h, "run", "seven", "--image", "busybox:1.36", "--wait", "--", "sh", "-c", "echo bad; exit 7")
		require.Equal(t, 7, code)
		require.Contains(t, out, "bad\n")
		require.Contains(t, out, "task seven failed: exit code 7")
	})
	t.Run("logs outlive the pod, and a restart", func(t *testing.T) {
		h.Ctl("wait pod -l " + tasks.LabelTask + "=hi --for=delete --timeout=120s")
		require.Equal(t, "hello you from hi\n", h.Run("logs", "hi"))
		h.Kill()
		h.Run("start")
		require.Equal(t, "hello you from hi\n", h.Run("logs", "hi", "--tail", "1"))
		h.Ctl("delete task hi")
		require.Contains(t, h.Fails("logs", "hi"), "there is no task hi")
	})
	t.Run("retries", func(t *testing.T) {
		out := h.Run("run", "third", "--image", "busybox:1.36", "--retries", "2", "--wait", "--", "sh", "-c",
			"echo attempt $TASK_ATTEMPT; [ $TASK_ATTEMPT = 3 ]")
		require.Regexp(t, "(?s)attempt 1\n.*attempt 2\n.*attempt 3\n", out)
		task := readTask(t, h, "third")
		require.Len(t, task.Status.Attempts, 3)
		require.EqualValues(t, 1, *task.Status.Attempts[1].ExitCode)
		require.Equal(t, "attempt 2\n", h.Run("logs", "third", "--attempt", "2"))
		require.Regexp(t, regexp.MustCompile(`(?m)^2 +- +Failed .* 1 .*exit code 1$`), h.Run("ps", "--task", "third"))
	})
	t.Run("timeouts", func(t *testing.T) {
		out, code := exitCode(t, h, "run", "long", "--image", "busybox:1.36", "--timeout", "1s", "--stop-timeout", "1s",
			"--wait", "--", "sleep", "1000")
		require.Equal(t, 1, code)
		require.Contains(t, out, "it ran for longer than 1s")
		out, _ = exitCode(t, h, "run", "vast", "--image", "busybox:1.36", "--cpu", "1000", "--schedule-timeout", "3s",
			"--wait")
		require.Regexp(t, "no feasible node within 3s: 0/1 nodes are available: .*Insufficient cpu", out)
		out, _ = exitCode(t, h, "run", "nowhere", "--image", "busybox:1.36", "--node", "gone", "--schedule-timeout", "3s",
			"--wait")
		require.Contains(t, out, "no feasible node within 3s: 0/1 nodes are available: 1 node(s) didn't match")
		h.Ctl("wait pod -l " + tasks.LabelTask + "=long --for=delete --timeout=120s")
	})
	t.Run("an image that does not exist", func(t *testing.T) {
		out, _ := exitCode(t, h, "run", "typo", "--image", "127.0.0.1:1/nothing:1", "--start-timeout", "2s", "--wait")
		require.Contains(t, out, "task typo failed: the image cannot be pulled: ")
		require.Contains(t, h.Fails("logs", "typo"), "has no output, because its container did not start: the image")
		require.Equal(t, "ErrImagePull", readTask(t, h, "typo").Status.Reason)
	})
	t.Run("arrays", func(t *testing.T) {
		h.Run("run", "all", "--image", "busybox:1.36", "--array", "6", "--parallelism", "3", "--wait", "--", "sh", "-c",
			"echo $TASK_INDEX of $TASK_COUNT")
		require.Equal(t, "4 of 6\n", h.Run("logs", "all", "--index", "4"))
		require.Contains(t, h.Fails("logs", "all"), "choose one of its outputs with --index 0 to 5")
		out, _ := exitCode(t, h, "run", "some", "--image", "busybox:1.36", "--array", "4", "--wait", "--", "sh", "-c",
			"[ $TASK_INDEX != 2 ]")
		require.Contains(t, out, "1 of 4 indexes failed: 2; index 2: exit code 1; `coracle logs some --index 2`")
		require.Contains(t, h.Fails("run", "million", "--image", "busybox:1.36", "--array", "1000000"),
			"must be from 1 to 10000")
	})
	t.Run("cancel and suspend", func(t *testing.T) {
		h.Run("run", "forever", "--image", "busybox:1.36", "--retries", "5", "--stop-timeout", "1s", "--", "sleep", "1000")
		taskUntil(h, "forever", ".status.phase", "Running")
		require.Contains(t, h.Run("ps"), "forever")
		h.Run("cancel", "forever")
		taskUntil(h, "forever", ".status.phase", "Failed")
		require.Equal(t, tasks.ReasonCancelled, readTask(t, h, "forever").Status.Reason)
		h.Ctl("wait pod -l " + tasks.LabelTask + "=forever --for=delete --timeout=120s")
	})
	t.Run("ports, volumes and keys", func(t *testing.T) {
		h.Ctl("create configmap page --from-literal=index.html=served")
		h.Apply(`
apiVersion: tasks.coracle.dev/v1alpha1
kind: Task
metadata: {name: web}
spec:
  image: busybox:1.36
  args: [httpd, -f, -p, "8080"]
  workingDir: /www
  ports: [{hostPort: 8099, containerPort: 8080}]
  volumes: [{mountPath: /www, configMap: {name: page}}]
`)
		taskUntil(h, "web", ".status.phase", "Running")
		require.Eventually(t, func() bool {
			text, err := h.Curl("http://198.51.100.2:8099/")
			return err == nil && text == "served"
		}, host.Patience, 100*time.Millisecond)
		h.Run("cancel", "web")
		one := h.Run("run", "--idempotency-key", "order 7", "--image", "busybox:1.36", "--", "true")
		require.Contains(t, one, tasks.NameForKey("order 7"))
		again, err := h.Try("run", "--idempotency-key", "order 7", "--image", "busybox:1.36", "--", "true")
		require.NoError(t, err, again)
		require.Contains(t, again, "was created before")
		require.Contains(t, h.Fails("run", "--idempotency-key", "order 7", "--image", "busybox:1.36", "--", "false"),
			"used for another request")
		taskUntil(h, tasks.NameForKey("order 7"), ".status.phase", "Completed")
	})
	t.Run("schedules", func(t *testing.T) {
		h.Run("run", "tick", "--image", "busybox:1.36", "--schedule", "@every 2s", "--", "true")
		h.Ctl("wait taskschedule/tick --for=jsonpath={.status.lastCompletedTime} --timeout=120s")
		h.Ctl("delete taskschedule tick")
		require.Contains(t, h.Fails("run", "tock", "--image", "busybox:1.36", "--schedule", "now and then"), "spec.schedule")
	})
	t.Run("ttl and prune", func(t *testing.T) {
		h.Run("run", "brief", "--image", "busybox:1.36", "--ttl", "1s", "--", "true")
		h.Ctl("wait task/brief --for=delete --timeout=120s")
		require.Regexp(t, `^[1-9]\d* tasks? deleted\n$`, h.Run("prune"))
		require.Empty(t, h.Ctl("get tasks -o name --field-selector=status.phase=Completed"))
	})
}

// TestTasksForBatches runs on real containers what batch users need besides retries and arrays. The manual's page batch
// shows most of it, and TestManual runs that page.
func TestTasksForBatches(t *testing.T) {
	h := host.New(t)
	h.Start()
	t.Run("attempts beyond a quota wait", func(t *testing.T) {
		h.Ctl("create namespace narrow")
		h.Ctl("-n narrow create quota two --hard=pods=2")
		h.Ctl("-n narrow wait quota/two --for=jsonpath={.status.used.pods}=0 --timeout=120s")
		h.Run("run", "hold", "-n", "narrow", "--image", "busybox:1.36", "--array", "2", "--stop-timeout", "1s", "--",
			"sleep", "1000")
		h.Ctl("-n narrow wait task/hold --for=jsonpath={.status.array.running}=2 --timeout=120s")
		h.Run("run", "many", "-n", "narrow", "--image", "busybox:1.36", "--array", "5", "--", "true")
		h.Ctl("-n narrow wait task/many --for=jsonpath={.status.error} --timeout=120s")
		require.Contains(t, h.Ctl("-n narrow get task many -o jsonpath={.status.error}"), "exceeded quota: two")
		h.Kill() // the tasks wait again after a restart
		h.Run("start")
		h.Run("cancel", "-n", "narrow", "hold")
		h.Ctl("-n narrow wait task/many --for=jsonpath={.status.phase}=Completed --timeout=120s")
		require.Equal(t, "5,5",
			h.Ctl("-n narrow get task many -o jsonpath={.status.array.completed},{.status.endedAttempts}"))
	})
	t.Run("claims, accounts and paths of the node", func(t *testing.T) {
		h.Apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
`)
		h.Run("run", "write", "--image", "busybox:1.36", "-v", "data:/data", "--wait", "--",
			"sh", "-c", "echo kept > /data/f")
		out, _ := exitCode(t, h, "run", "read", "--image", "busybox:1.36", "-v", "data:/data:ro", "--after", "write",
			"--wait", "--", "sh", "-c", "cat /data/f; touch /data/g")
		require.Contains(t, out, "kept\n")
		require.Contains(t, out, "Read-only file system")
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("of the node"), 0o600))
		require.Contains(t, h.Run("run", "host", "--image", "busybox:1.36", "-v", dir+":/host",
			"--service-account", "default", "--wait", "--", "cat", "/host/f",
			"/var/run/secrets/kubernetes.io/serviceaccount/namespace"), "of the nodedefault")
	})
	t.Run("files outlive the pod and a restart", func(t *testing.T) {
		h.Run("run", "build", "--image", "busybox:1.36", "--output-path", "/out", "--retries", "1", "--backoff", "0s",
			"--wait", "--", "sh", "-c", "mkdir /out/d; echo attempt $TASK_ATTEMPT > /out/d/f; "+
				"ln -s /etc /out/link; [ $TASK_ATTEMPT = 2 ]")
		h.Ctl("wait pod -l " + tasks.LabelTask + "=build --for=delete --timeout=120s")
		h.Kill()
		h.Run("start")
		to := t.TempDir()
		h.Run("task", "cp", "build:.", to)
		h.Run("task", "cp", "build:/out/d/f", filepath.Join(to, "first"), "--attempt", "1")
		for file, want := range map[string]string{"d/f": "attempt 2\n", "first": "attempt 1\n"} {
			text, err := os.ReadFile(filepath.Join(to, file))
			require.NoError(t, err)
			require.Equal(t, want, string(text))
		}
		require.NoFileExists(t, filepath.Join(to, "link"))
		require.Contains(t, h.Fails("task", "cp", "build:none", to), "left no none below /out")
		require.Contains(t, h.Fails("task", "cp", "build:/etc/passwd", to), "keeps only the files below /out")
		require.Contains(t, h.Fails("task", "cp", "write:f", to), "run it with --output-path")
		for _, a := range readTask(t, h, "build").Status.Attempts {
			require.NotNil(t, a.Usage)
			require.Positive(t, a.Usage.PeakMemoryBytes)
			require.Positive(t, a.Usage.CPUMilliseconds)
		}
		h.Run("run", "large", "--image", "busybox:1.36", "--output-path", "/out", "--wait", "--",
			"truncate", "-s", "100M", "/out/f")
		h.Ctl("wait pod -l " + tasks.LabelTask + "=large --for=delete --timeout=120s")
		require.Contains(t, h.Fails("task", "cp", "large:f", to), "larger than 64 MiB")
	})
	t.Run("an init container that fails", func(t *testing.T) {
		h.Apply(`
apiVersion: tasks.coracle.dev/v1alpha1
kind: Task
metadata: {name: prepared}
spec:
  image: busybox:1.36
  command: ["true"]
  initContainers: [{name: first, image: busybox:1.36, command: [sh, -c, "echo not today; exit 4"]}]
`)
		taskUntil(h, "prepared", ".status.phase", "Failed")
		require.Equal(t, "init container first failed: exit code 4", readTask(t, h, "prepared").Status.Error)
		require.Equal(t, "not today\n", h.Run("logs", "prepared", "-c", "first"))
		require.Contains(t, h.Fails("logs", "prepared", "-c", "../first"), "is not the name of a container")
	})
	t.Run("templates", func(t *testing.T) {
		h.Run("run", "resize", "--image", "busybox:1.36", "--template", "--param", "FILE", "--", "echo", "$(FILE) done")
		require.Contains(t, h.Fails("run", "--from", "resize"), "needs a value for its parameter FILE")
		require.Contains(t, h.Fails("run", "--from", "resize", "--arg", "X=1", "--arg", "FILE=a"), "has no parameter X")
		require.Contains(t, h.Fails("run", "--from", "resize", "--image", "x"), "leave out --image")
		h.Run("run", "nightly", "--image", "busybox:1.36", "--schedule", "@daily", "--param", "A=1", "--",
			"echo", "A is $(A)")
		require.Contains(t, h.Run("run", "--from", "nightly", "--wait"), "A is 1\n")
		require.Regexp(t, `nightly +@daily +<none> +false +0 +<none> +[0-9]+[hms]`, h.Ctl("get taskschedule nightly"))
	})
}

// TestTasksSurviveKills checks that every task ends in exactly one terminal phase with its true result while
// processes are killed.
func TestTasksSurviveKills(t *testing.T) {
	h := host.New(t)
	h.Start()
	const size = 42
	arrays := storm(5, 12) // more than 200 tasks, or more than 500
	for i := range arrays {
		h.Run("run", fmt.Sprint("flow", i), "--image", "busybox:1.36", "--array", fmt.Sprint(size), "--parallelism", "6",
			"--retries", "3", "--backoff", "0s", "--", "sh", "-c",
			"[ $((TASK_INDEX % 10)) != 9 ]")
	}
	for range 3 {
		taskUntil(h, fmt.Sprint("flow", arrays-1), ".status.phase", "Running") // the array that ends last
		h.Kill()
		h.Run("start")
		killShim(h)
	}
	for i := range arrays {
		name := fmt.Sprint("flow", i)
		h.Await(8*time.Minute, "task/"+name+" --for=jsonpath={.status.finishedAt}")
		s := readTask(t, h, name).Status
		require.True(t, s.Phase.Ended())
		require.EqualValues(t, size, s.Array.Completed+s.Array.Failed)
		require.Equal(t, tasks.TaskFailed, s.Phase)
		require.Equal(t, "9,19,29,39", s.Array.FailedIndexes, "exactly the failing indexes")
	}
	h.Ctl("wait pod -l " + tasks.LabelTask + " --for=delete --timeout=120s")
	require.Empty(t, strings.TrimSpace(h.Ctl("get pods -l "+tasks.LabelTask+" -o name")))
}
