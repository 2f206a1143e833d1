package task

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// world is a cluster with one task and two nodes, in which any event can happen between two writes.
type world struct {
	*rapid.T
	now    time.Time
	task   *tasks.Task
	pods   []*corev1.Pod
	heard  map[string]time.Time
	made   int
	exits  map[types.UID]int32 // the exit codes of ended containers
	counts map[string]int      // the recorded ends, by pod
}

func (w *world) observe() Observed {
	o := Observed{Task: w.task.DeepCopy(), Heard: map[string]Heartbeat{}, Rejected: map[string]string{}}
	for _, p := range w.pods {
		o.Pods = append(o.Pods, p.DeepCopy())
	}
	for n, at := range w.heard {
		o.Heard[n] = Heartbeat{at, tasks.DefaultPatience}
	}
	return o
}

// reconcile acts as the reconciler, but stops after a number of writes. It reports whether it completed.
func (w *world) reconcile(writes int) bool {
	write := func() bool { writes--; return writes >= 0 }
	o := w.observe()
	a := Plan(o, w.now)
	if len(a.Create) > 0 {
		for _, at := range a.Create {
			if !write() {
				return false
			}
			p := tasks.Pod(w.task, &at)
			require.False(w, slices.ContainsFunc(w.pods, func(q *corev1.Pod) bool { return q.Name == p.Name }),
				"the pod %s is there already", p.Name)
			w.made++
			p.UID, p.CreationTimestamp = types.UID(fmt.Sprint("pod-", w.made)), metav1.NewTime(w.now)
			w.pods = append(w.pods, p)
			o.Pods = append(o.Pods, p)
		}
		a = Plan(o, w.now)
		require.Empty(w, a.Create)
	}
	if !write() {
		return false
	}
	w.record(a.Status)
	for _, p := range a.Release {
		if !write() {
			return false
		}
		i := slices.IndexFunc(w.pods, func(q *corev1.Pod) bool { return q.UID == p.UID })
		if i < 0 {
			continue
		}
		w.pods[i].Finalizers = nil
		if !write() {
			return false
		}
		if w.pods[i].DeletionTimestamp == nil {
			w.delete(w.pods[i])
		}
		w.collect()
	}
	return true
}

// record writes the status with the API server's validation.
func (w *world) record(s tasks.TaskStatus) {
	next := w.task.DeepCopy()
	next.Status = s
	require.Empty(w, tasks.ValidateStatusUpdate(next, w.task))
	before := w.task.Status
	known := func(a tasks.TaskAttempt) bool {
		return slices.ContainsFunc(before.Attempts, func(b tasks.TaskAttempt) bool {
			return b.Phase.Ended() && tasks.PodName(w.task, &a) == tasks.PodName(w.task, &b)
		})
	}
	added := int32(0)
	for _, a := range s.Attempts {
		if !a.Phase.Ended() || known(a) {
			continue
		}
		added++
		w.counts[tasks.PodName(w.task, &a)]++
		if a.ExitCode != nil {
			require.Equal(w, w.exits[a.PodUID], *a.ExitCode, "the truth")
			if a.Phase == tasks.TaskCompleted {
				require.Zero(w, *a.ExitCode)
			}
		}
		require.NotNil(w, a.FinishedAt)
	}
	require.Equal(w, before.EndedAttempts+added, s.EndedAttempts, "each end is counted once")
	for name, n := range w.counts {
		require.Equal(w, 1, n, name)
	}
	active := 0
	for _, a := range s.Attempts {
		if !a.Phase.Ended() {
			active++
		}
	}
	if s.Phase.Ended() {
		require.Zero(w, active)
		require.NotNil(w, s.FinishedAt)
		if s.Phase == tasks.TaskFailed {
			require.NotEmpty(w, s.Reason)
			require.NotEmpty(w, s.Error)
		}
	}
	w.task = next
}

func (w *world) delete(p *corev1.Pod) {
	at, grace := metav1.NewTime(w.now), int64(30)
	if p.Spec.NodeName == "" || over(p) {
		grace = 0
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
}

func (w *world) collect() {
	w.pods = slices.DeleteFunc(w.pods, func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && *p.DeletionGracePeriodSeconds == 0 && len(p.Finalizers) == 0
	})
}

// happen takes a random step of the scheduler, an agent or a user.
func (w *world) happen() {
	if len(w.pods) == 0 {
		return
	}
	p := w.pods[rapid.IntRange(0, len(w.pods)-1).Draw(w.T, "pod")]
	what := rapid.SampledFrom([]string{"bind", "run", "exit", "exit", "delete", "gone", "no node"}).Draw(w.T, "event")
	bound := p.Spec.NodeName != ""
	switch {
	case what == "bind" && !bound && p.DeletionTimestamp == nil:
		p.Spec.NodeName = rapid.SampledFrom([]string{"m", "n"}).Draw(w.T, "node")
	case what == "no node" && !bound:
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no"}}
	case what == "run" && bound && len(p.Status.ContainerStatuses) == 0:
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(w.now)}}},
		}
	case what == "exit" && bound && !over(p):
		code := rapid.Int32Range(0, 2).Draw(w.T, "code")
		w.exits[p.UID] = code
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code,
				FinishedAt: metav1.NewTime(w.now.Add(time.Duration(rapid.IntRange(-60, 60).Draw(w.T, "clock")) * time.Second))}}},
		}
		if p.DeletionTimestamp != nil {
			*p.DeletionGracePeriodSeconds = 0
		}
	case what == "delete" && p.DeletionTimestamp == nil:
		w.delete(p)
	case what == "gone" && p.DeletionTimestamp != nil:
		*p.DeletionGracePeriodSeconds = 0
	}
	w.collect()
}

func (w *world) edit() {
	s := w.task.Spec.DeepCopy()
	switch rapid.SampledFrom([]string{"suspend", "retries", "parallelism", "cancel", "timeout"}).Draw(w.T, "edit") {
	case "suspend":
		s.Suspend = !s.Suspend
	case "retries":
		s.Retries = rapid.Int32Range(0, 3).Draw(w.T, "retries")
	case "parallelism":
		if s.Array != nil {
			s.Array.Parallelism = ptr(rapid.Int32Range(1, 4).Draw(w.T, "parallelism"))
		}
	case "timeout":
		s.RunTimeoutSeconds, s.ScheduleTimeoutSeconds = ptr(rapid.Int64Range(1, 90).Draw(w.T, "run")), ptr(rapid.Int64Range(1,
			90).Draw(w.T, "schedule"))
	case "cancel":
		if rapid.IntRange(0, 5).Draw(w.T, "really") == 0 {
			s.Cancel = true
		}
	}
	next := w.task.DeepCopy()
	next.Spec = *s
	if len(tasks.ValidateUpdate(next, w.task)) == 0 {
		w.task = next
	}
}

// TestModel checks that a task ends once, with its true result, and that each end of an attempt counts once, under any
// steps of pods, nodes and users and any crashes of the process. A second plan after the first must be empty.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			T:      t,
			now:    now,
			task:   begun(""),
			exits:  map[types.UID]int32{},
			counts: map[string]int{},
			heard:  map[string]time.Time{"m": now, "n": now},
		}
		s := &w.task.Spec
		s.Retries, s.BackoffSeconds = rapid.Int32Range(0, 3).Draw(t, "retries"), ptr(rapid.Int32Range(0, 5).Draw(t,
			"backoff"))
		if n := rapid.Int32Range(0, 6).Draw(t, "size"); n > 0 {
			s.Array = &tasks.TaskArray{Size: n, Parallelism: ptr(rapid.Int32Range(1, 4).Draw(t, "parallelism"))}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				w.edit()
			case 1:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
			case 2:
				n := rapid.SampledFrom([]string{"m", "n"}).Draw(t, "node")
				switch rapid.SampledFrom([]string{"heartbeat", "heartbeat", "deleted"}).Draw(t, "what") {
				case "heartbeat":
					w.heard[n] = w.now
				default:
					delete(w.heard, n)
				}
			case 3, 4, 5:
				w.happen()
			default:
				w.step()
			}
		}
		// Both nodes return, all containers end, and the task is resumed.
		w.task.Spec.Suspend = false
		for i := 0; !w.task.Status.Phase.Ended(); i++ {
			require.Less(t, i, 200, "the task does not end")
			w.heard["m"], w.heard["n"] = w.now, w.now
			for _, p := range w.pods {
				if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
					p.Spec.NodeName = "m"
				} else if !over(p) {
					w.exits[p.UID] = 0
					p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: terminated0(0, "", "")}}
				}
				if p.DeletionTimestamp != nil {
					*p.DeletionGracePeriodSeconds = 0
				}
			}
			w.collect()
			w.now = w.now.Add(time.Minute)
			w.step()
		}
		final := w.task.Status
		w.reconcile(1000)
		require.Equal(t, final, w.task.Status)
		for _, p := range w.pods {
			require.Empty(t, p.Finalizers, "pods of a finished task are released")
		}
	})
}

// step reconciles, and checks that a second plan is empty.
func (w *world) step() {
	if !w.reconcile(rapid.SampledFrom([]int{0, 1, 2, 3, 4, 1000, 1000, 1000}).Draw(w.T, "killed after")) {
		return
	}
	o := w.observe()
	a := Plan(o, w.now)
	if len(a.Create) > 0 { // it waited for a pod that is now deleted
		w.reconcile(1000)
		a = Plan(w.observe(), w.now)
	}
	require.Empty(w, a.Create)
	require.Equal(w, w.task.Status, a.Status)
	for _, p := range a.Release {
		require.Empty(w, p.Finalizers)
		require.NotNil(w, p.DeletionTimestamp)
	}
	if active := len(w.task.Status.Attempts); w.task.Spec.Array != nil {
		require.LessOrEqual(w, active, tasks.MaxAttempts+tasks.MaxParallelism)
	}
}
