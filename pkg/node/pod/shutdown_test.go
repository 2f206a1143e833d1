package pod

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// stubborn returns a program that exits when after has passed since the last signal. SIGKILL ends it at once.
func stubborn(after time.Duration) fake.Program {
	return func(ctx context.Context, p *fake.Process) int {
		timer := time.NewTimer(1 << 60)
		for {
			select {
			case <-p.Signals:
				timer.Reset(after)
			case <-timer.C:
				return 0
			case <-ctx.Done():
				return 137
			}
		}
	}
}

func slowPrograms() fake.Config {
	return fake.Config{Programs: map[string]fake.Program{"quick": stubborn(time.Second), "slow": stubborn(time.Hour)}}
}

// terminate terminates pods with a common deadline, and returns how long each took.
func (r *rig) terminate(within time.Duration, names ...string) []time.Duration {
	r.Helper()
	began := time.Now()
	took := make([]time.Duration, len(names))
	var ending sync.WaitGroup
	for i, name := range names {
		ended := r.m.Terminate(types.UID("uid-"+name), began.Add(within))
		require.NotNil(r, ended)
		ending.Go(func() {
			<-ended
			took[i] = time.Since(began)
		})
	}
	ending.Wait()
	synctest.Wait()
	return took
}

func (r *rig) requireTerminated(names ...string) {
	r.Helper()
	for _, name := range names {
		p := r.pod(name)
		require.Equal(r, corev1.PodFailed, p.Status.Phase, name)
		require.Equal(r, "Terminated", p.Status.Reason)
		require.Equal(r, "Pod was terminated in response to imminent node shutdown.", p.Status.Message)
		c := conditionOf(p, corev1.DisruptionTarget)
		require.Equal(r, corev1.ConditionTrue, c.Status)
		require.Equal(r, "TerminationByKubelet", c.Reason)
		require.Equal(r, "Pod was terminated in response to imminent node shutdown.", c.Message)
		require.Equal(r, corev1.ConditionFalse, conditionOf(p, corev1.PodReady).Status)
	}
}

// TestShutdownEndsPods checks that pods end within the shorter of their grace period and the machine's deadline.
func TestShutdownEndsPods(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		r.create(podOf("quick", "quick"))
		r.create(podOf("slow", "slow"))
		own := podOf("own", "slow")
		own.Spec.TerminationGracePeriodSeconds = new(int64(3))
		r.create(own)
		sidecar := podOf("sidecar", "slow")
		sidecar.Spec.InitContainers = []corev1.Container{
			{Name: "side", Command: []string{"slow"}, RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
		}
		r.create(sidecar)
		hook := podOf("hook", "slow")
		hook.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 20}},
		}
		r.create(hook)
		done := podOf("done", "true")
		done.Spec.RestartPolicy = corev1.RestartPolicyNever
		r.create(done)
		r.pass(time.Second)
		require.Len(t, r.running(), 6)
		r.down.Store(true)
		took := r.terminate(9*time.Second, "quick", "slow", "own", "sidecar", "hook", "done")
		require.Equal(t, []time.Duration{time.Second, 9 * time.Second, 3 * time.Second, 9 * time.Second, 9 * time.Second, 0},
			took)
		require.Empty(t, r.running())
		require.Empty(t, r.network.sandboxes, "what they used is released")
		r.requireTerminated("quick", "slow", "own", "sidecar", "hook")
		require.Equal(t, corev1.PodSucceeded, r.pod("done").Status.Phase, "it had ended before")
		require.Empty(t, r.pod("done").Status.Reason)
		r.pass(time.Hour)
		require.Empty(t, r.running(), "they stay so")
		require.Nil(t, r.m.Terminate("nobody", time.Now()))
	})
}

// TestShutdownOfPodsThatEndAnyway checks that pods that already end keep their reason, and get no extra time.
func TestShutdownOfPodsThatEndAnyway(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		late := podOf("late", "slow")
		late.Spec.ActiveDeadlineSeconds = new(int64(5))
		r.create(late)
		r.create(podOf("deleted", "slow"))
		r.pass(5 * time.Second)
		r.delete("deleted", 600)
		r.pass(time.Second)
		r.down.Store(true)
		took := r.terminate(9*time.Second, "late", "deleted")
		require.Equal(t, []time.Duration{9 * time.Second, 9 * time.Second}, took)
		require.Equal(t, "DeadlineExceeded", r.pod("late").Status.Reason)
		require.Nil(t, r.pod("deleted"))
	})
}

func TestNothingStartsDuringShutdown(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		r.create(podOf("crashes", "sleep", "10"))
		r.create(podOf("spared", "slow"))
		r.down.Store(true)
		r.pass(time.Minute)
		require.Equal(t, []string{"main"}, r.running())
		refused := r.create(podOf("new", "slow"))
		require.Equal(t, corev1.PodFailed, refused.Status.Phase)
		require.Equal(t, "NodeShutdown", refused.Status.Reason)
		require.Equal(t, "Pod was rejected as the node is shutting down.", refused.Status.Message)
		r.terminate(time.Second, "crashes")
		r.requireTerminated("crashes")
		r.down.Store(false)
		require.Empty(t, r.m.Resume())
		r.create(podOf("newer", "slow"))
		r.pass(time.Minute)
		require.Len(t, r.running(), 2)
		for _, name := range []string{"spared", "newer"} {
			require.Equal(t, corev1.PodRunning, r.pod(name).Status.Phase)
		}
		r.requireTerminated("crashes")
	})
}

// TestShutdownOfStaticPods checks that static pods end like others, and that Resume returns them.
func TestShutdownOfStaticPods(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		r.static = []*corev1.Pod{staticPod("static", "uid-static", "quick")}
		r.restart()
		require.Len(t, r.running(), 1)
		r.down.Store(true)
		r.m.StartStatic(staticPod("late", "uid-late", "quick"), "late.yaml")
		require.Equal(t, []time.Duration{time.Second}, r.terminate(9*time.Second, "static"))
		for name, reason := range map[string]string{"static": "Terminated", "late": "NodeShutdown"} {
			p, has := r.m.Find("default", name, "")
			require.True(t, has)
			require.Equal(t, corev1.PodFailed, p.Status.Phase)
			require.Equal(t, reason, p.Status.Reason)
		}
		r.down.Store(false)
		require.ElementsMatch(t, []types.UID{"uid-static", "uid-late"}, r.m.Resume())
		require.Empty(t, r.running(), "static.Manager stops and starts them")

		r.restart()
		r.pass(time.Minute)
		require.Len(t, r.running(), 1, "a boot of the machine")
	})
}

func TestKilledInTheMiddleOfAShutdown(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		r.create(podOf("a", "slow"))
		r.pass(time.Second)
		r.down.Store(true)
		r.m.Terminate("uid-a", time.Now().Add(20*time.Second))
		r.pass(time.Second)
		require.Equal(t, corev1.PodRunning, r.pod("a").Status.Phase)
		require.Equal(t, "Terminated", r.pod("a").Status.Reason)
		r.restart()
		r.down.Store(true)
		r.pass(time.Second)
		require.Len(t, r.running(), 1)
		require.Equal(t, []time.Duration{5 * time.Second}, r.terminate(5*time.Second, "a"))
		r.requireTerminated("a")

		r.create(podOf("b", "slow"))
		r.pass(time.Second)
		require.Equal(t, "NodeShutdown", r.pod("b").Status.Reason)
	})
	with(t, slowPrograms(), func(r *rig) {
		r.create(podOf("a", "slow"))
		r.pass(time.Second)
		r.down.Store(true)
		r.m.Terminate("uid-a", time.Now().Add(20*time.Second))
		r.pass(time.Second)
		r.stop()
		require.NoError(t, r.runtime.Purge(t.Context())) // the containers are gone
		r.start()
		r.pass(time.Minute)
		r.requireTerminated("a")
		require.Equal(t, "terminated: ContainerStatusUnknown 137", state(r.status("a", "main")))
		require.Empty(t, r.running())
	})
}

func TestFlush(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		r.create(podOf("a", "quick"))
		r.create(podOf("b", "quick"))
		r.pass(time.Second)
		r.down.Store(true)
		r.terminate(9*time.Second, "b")
		r.api.refusing(func(string) error { return errors.New("no server") })
		r.terminate(9*time.Second, "a")
		r.pass(time.Minute)
		require.Equal(t, corev1.PodRunning, r.pod("a").Status.Phase)
		r.m.Flush(t.Context())
		var writes atomic.Int32
		r.api.refusing(func(string) error { writes.Add(1); return nil })
		r.m.Flush(t.Context())
		require.EqualValues(t, 1, writes.Load())
		r.requireTerminated("a", "b")
	})
}
