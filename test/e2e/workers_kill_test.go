package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

// survivor is a pool of pods that write the messages that they handle into a directory of the machine. It is a
// ReplicaSet, because a Worker cannot mount that volume.
const survivor = `
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {clusterIP: None, selector: {app: NAME}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: NAME}
spec:
  replicas: 2
  selector: {matchLabels: {app: NAME}}
  template:
    metadata:
      labels: {app: NAME}
      annotations: {workers.coracle.dev/queue: '{"worker": "NAME", "promise": "PROMISE", "limit": 100000, "maxAttempts": 100}'}
    spec:
      nodeSelector: {kubernetes.io/hostname: NODE}
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: busybox:1.36
        command:
        - sh
        - -c
        - |
          api=http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation
          while true; do
            wget -q -S -O /tmp/message $api/next 2>/tmp/headers || { sleep 0.1; continue; }
            id=$(sed -n 's/\r//; s/^ *Lambda-Runtime-Aws-Request-Id: //p' /tmp/headers)
            echo $(cat /tmp/message) >>/share/NAME
            wget -q -O /dev/null --post-data= $api/$id/response
          done
        volumeMounts: [{name: share, mountPath: /share}]
      volumes: [{name: share, hostPath: {path: DIR}}]
`

// flow sends messages to two pools of survivors on one node: "once" with AtMostOnce and "least" with AtLeastOnce.
type flow struct {
	t    *testing.T
	dir  string
	sent atomic.Int64
	all  sync.WaitGroup

	mu       sync.Mutex
	accepted map[string][]string
}

func newFlow(t *testing.T, h *host.Host, node string) *flow {
	f := &flow{t: t, dir: t.TempDir(), accepted: map[string][]string{}}
	require.NoError(t, os.Chmod(f.dir, 0o777)) //nolint:gosec // for the pods
	for name, promise := range map[string]string{"once": "AtMostOnce", "least": "AtLeastOnce"} {
		h.Apply(strings.NewReplacer("NAME", name, "PROMISE", promise, "DIR", f.dir, "NODE", node).Replace(survivor))
		h.Ctl("wait rs/" + name + " --for=jsonpath={.status.readyReplicas}=2 --timeout=120s")
	}
	return f
}

// send sends messages to both pools in the background until each pool has accepted the given number.
func (f *flow) send(s *sender, each int) {
	for _, name := range []string{"once", "least"} {
		f.all.Go(func() {
			refused := 0
			for i := range each {
				require.Eventually(f.t, func() bool {
					text := fmt.Sprintf("%s-%d", name, i)
					if name == "once" { // a refused message may still have been accepted, so its text is not sent again
						text = fmt.Sprintf("%s-%d", text, refused)
					}
					if code, _, _ := s.send("services/"+name, "", text); code != 202 {
						refused++
						return false
					}
					f.mu.Lock()
					defer f.mu.Unlock()
					f.accepted[name] = append(f.accepted[name], text)
					return true
				}, 4*time.Minute, 20*time.Millisecond) // most of the receivers may be away together, and for long
				f.sent.Add(1)
			}
		})
	}
}

func (f *flow) reaches(n int) {
	require.Eventually(f.t, func() bool { return f.sent.Load() >= int64(n) }, 10*time.Minute, 5*time.Millisecond)
}

func (f *flow) handled(name string) map[string]int {
	times := map[string]int{}
	if text, err := os.ReadFile(filepath.Join(f.dir, name)); err == nil {
		for line := range strings.FieldsSeq(string(text)) {
			times[line]++
		}
	}
	return times
}

func (f *flow) kept() {
	f.all.Wait()
	lost := func() (list []string) {
		times := f.handled("least")
		for _, text := range f.accepted["least"] {
			if times[text] == 0 {
				list = append(list, text)
			}
		}
		return list
	}
	assert.Eventually(f.t, func() bool {
		return len(lost()) == 0
	}, time.Duration(storm(4, 10))*time.Minute, 500*time.Millisecond)
	require.Empty(f.t, lost(), "every accepted message is handled")
	once := f.handled("once")
	require.NotEmpty(f.t, once)
	for text, times := range once {
		require.Equal(f.t, 1, times, text)
	}
}

// killWorker kills the program in a pod of the pool "least", and deletes its pods. Their replacements get the
// remaining messages.
func killWorker(h *host.Host) {
	pod, _, _ := strings.Cut(h.Ctl("get pods -l app=least -o name"), "\n")
	_, _ = h.Try("ctl", "exec", strings.TrimPrefix(pod, "pod/"), "--", "kill", "-9", "1")
	h.Ctl("delete pod -l app=least --wait=false")
}

func killShim(h *host.Host) {
	for _, p := range h.Status().Processes {
		if strings.HasPrefix(p.Name, "shim") {
			_ = syscall.Kill(p.PID, syscall.SIGKILL) // it may have ended by itself
			return
		}
	}
}

// TestMessagesSurvive kills the server with its agent, and the programs, while messages flow. With AtLeastOnce
// every accepted message must be handled, with AtMostOnce none twice.
func TestMessagesSurvive(t *testing.T) {
	h := host.New(t)
	h.Start()
	f := newFlow(t, h, h.Name)
	each := storm(150, 5000)
	f.send(newSender(t, h), each)
	for _, at := range []int{each / 2, each} {
		f.reaches(at)
		h.Kill()
		h.Run("start")
		killWorker(h)
	}
	f.kept()
}

// TestJoinedAgentIsKilled kills a joined machine's agent (a separate process), the server, shims and programs at
// random while messages and tasks flow to that machine. The delivery guarantees must hold, and every task must end
// with its true result.
func TestJoinedAgentIsKilled(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	a := startAgent(t, other, words)
	defer func() { a.end() }()
	h.Ctl("wait node/" + other.Name + " --for=condition=Ready --timeout=120s")
	other.Load()
	f := newFlow(t, h, other.Name)
	const size = 42
	arrays := storm(1, 12)
	for i := range arrays {
		h.Run("run", fmt.Sprint("flow", i), "--image", "busybox:1.36", "--array", fmt.Sprint(size), "--parallelism", "4",
			"--retries", "4", "--backoff", "0s", "--node", other.Name,
			"--", "sh", "-c", "[ $((TASK_INDEX % 10)) != 9 ]")
	}
	each := storm(100, 5000)
	f.send(newSender(t, h), each)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	rounds := storm(3, 8)
	for round := range rounds {
		// The usual test kills the server once, because it takes a second or two to start.
		strikes := []func(){
			func() { a.kill(); a = startAgent(t, other, words) },
			func() { killShim(other) },
			func() { killWorker(h) },
			func() {
				if round == 1 || rounds > 3 {
					h.Kill()
					h.Run("start")
				}
			},
		}
		f.reaches((round*2*each + random.IntN(2*each)) / (rounds + 1))
		for _, i := range random.Perm(len(strikes)) {
			strikes[i]()
		}
	}
	f.kept()
	for i := range arrays {
		name := fmt.Sprint("flow", i)
		h.Await(8*time.Minute, "task/"+name+" --for=jsonpath={.status.finishedAt}")
		s := readTask(t, h, name).Status
		require.Equal(t, tasks.TaskFailed, s.Phase)
		require.EqualValues(t, size, s.Array.Completed+s.Array.Failed)
		require.Equal(t, "9,19,29,39", s.Array.FailedIndexes, "exactly the failing indexes")
	}
}
