package pod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// deaf ignores SIGTERM.
func deaf(ctx context.Context, p *fake.Process) int {
	for {
		select {
		case <-ctx.Done():
			return 137
		case <-p.Signals:
		}
	}
}

var deafness = fake.Config{Programs: map[string]fake.Program{"deaf": deaf}}

func TestDeletedWhileItStarts(t *testing.T) {
	pull := func(ctx context.Context, ref string) error {
		if !strings.Contains(ref, "slow") {
			return errors.New("no such image")
		}
		<-ctx.Done()
		return ctx.Err()
	}
	for name, prepare := range map[string]func(*rig, *corev1.Pod){
		"an image is pulled":  func(_ *rig, p *corev1.Pod) { p.Spec.Containers[0].Image = "slow" },
		"an image is missing": func(_ *rig, p *corev1.Pod) { p.Spec.Containers[0].Image = "none" },
		"an image may not be pulled": func(_ *rig, p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "none", corev1.PullNever
		},
		"the network fails": func(r *rig, _ *corev1.Pod) {
			r.network.refusing(func(call string) error {
				if call == "setup" {
					return errors.New("no address")
				}
				return nil
			})
		},
		"it backs off": func(_ *rig, p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"false"} },
		"its hook runs": func(_ *rig, p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: sleeps(1000)}
		},
		"it initializes": func(_ *rig, p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{containerNamed("init", "sleep", "1000")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, fake.Config{Pull: pull}, func(r *rig) {
				p := podOf("web", "sleep", "1000")
				prepare(r, p)
				p.Spec.Containers[0].Name = "main"
				r.create(p)
				r.pass(5 * time.Second)
				require.NotEqual(t, corev1.ConditionTrue, conditionOf(r.pod("web"), corev1.PodReady).Status)
				began := time.Now()
				r.delete("web", 30)
				require.Zero(t, time.Since(began))
				require.Nil(t, r.pod("web"))
				r.requireNothingLeft()
			})
		})
	}
}

func TestForcedDeletion(t *testing.T) {
	with(t, deafness, func(r *rig) {
		r.create(podOf("web", "deaf"))
		r.delete("web", 30)
		r.pass(time.Second)
		require.Equal(t, []string{"main"}, r.running())
		r.api.remove("uid-web")
		r.pass(2 * time.Second)
		r.requireNothingLeft()
	})
}

// A new pod does not inherit the agent's state of a previous pod with the same name.
func TestPodOfTheSameName(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(podOf("web", "sleep", "1000"))
		old := r.pod("web")
		r.api.remove(old.UID)
		second := old.DeepCopy()
		second.UID, second.Status = "uid-second", corev1.PodStatus{}
		r.api.put(second)
		r.pass(31 * time.Second)
		require.Len(t, r.running(), 1)
		got := r.api.get("uid-second")
		require.Equal(t, corev1.PodRunning, got.Status.Phase)
		require.NotEqual(t, old.Status.ContainerStatuses[0].ContainerID, got.Status.ContainerStatuses[0].ContainerID)
		require.Len(t, r.m.all(), 1)
	})
}

// How long a container that ignores SIGTERM may run, depending on grace periods and deletions.
func TestGracePeriods(t *testing.T) {
	type deletion struct {
		after time.Duration // since the previous one
		grace int64
	}
	for name, tt := range map[string]struct {
		hook      *corev1.LifecycleHandler
		deletions []deletion
		ends      time.Duration // after the first deletion
	}{
		"its own":                       {nil, []deletion{{0, 30}}, 30 * time.Second},
		"a shorter one":                 {nil, []deletion{{0, 5}}, 5 * time.Second},
		"none":                          {nil, []deletion{{0, 0}}, 0},
		"shortened later":               {nil, []deletion{{0, 30}, {10 * time.Second, 3}}, 13 * time.Second},
		"a second that is no shorter":   {nil, []deletion{{0, 10}, {5 * time.Second, 10}}, 10 * time.Second},
		"ended at once later":           {nil, []deletion{{0, 30}, {10 * time.Second, 0}}, 10 * time.Second},
		"with a hook":                   {sleeps(10), []deletion{{0, 30}}, 30 * time.Second},
		"with a hook that takes it all": {sleeps(100), []deletion{{0, 20}}, 22 * time.Second},
		"no hook without grace":         {sleeps(10), []deletion{{0, 0}}, 0},
		"a hook that is cut short":      {sleeps(100), []deletion{{0, 60}, {10 * time.Second, 5}}, 17 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, deafness, func(r *rig) {
				p := podOf("web", "deaf")
				if tt.hook != nil {
					p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: tt.hook}
				}
				r.create(p)
				began := time.Now()
				for _, d := range tt.deletions {
					r.pass(d.after)
					r.delete("web", d.grace)
				}
				for len(r.running()) > 0 {
					require.Less(t, time.Since(began), 2*time.Minute)
					r.pass(100 * time.Millisecond)
				}
				require.InDelta(t, tt.ends.Seconds(), time.Since(began).Seconds(), 0.11)
				require.Nil(t, r.pod("web"))
				r.requireNothingLeft()
			})
		})
	}
}

func sleeps(seconds int64) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}
}

// A hook that fails does not keep the container from being stopped; a postStart hook that fails restarts it.
func TestHooksThatFail(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		fails := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"false"}}}
		p := podOf("stop", "sleep", "1000")
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: fails}
		r.create(p)
		r.delete("stop", 30)
		r.pass(time.Second)
		require.Nil(t, r.pod("stop"))
		require.Contains(t, r.events.text(), "FailedPreStopHook: PreStopHook failed: ")

		p = podOf("start", "sleep", "1000")
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: fails}
		r.create(p)
		r.pass(5 * time.Second)
		require.Contains(t, r.events.text(), "FailedPostStartHook: PostStartHook failed: ")
		require.Positive(t, r.status("start", "main").RestartCount)
		require.Equal(t, corev1.ConditionFalse, conditionOf(r.pod("start"), corev1.PodReady).Status)
	})
}

func TestDeletionWhileTheAPIFails(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(podOf("web", "sleep", "1000"))
		r.api.refusing(func(string) error { return errors.New("etcd is away") })
		r.delete("web", 5)
		r.pass(30 * time.Second)
		require.Empty(t, r.running(), "the containers are stopped nevertheless")
		require.Empty(t, r.network.sandboxes)
		require.NotNil(t, r.pod("web"))
		r.api.refusing(nil)
		r.pass(2 * time.Minute)
		require.Nil(t, r.pod("web"))
		r.requireNothingLeft()
	})
}

// The containers' exit codes are in the API before the pod is deleted, so that watchers see them.
func TestLastStatus(t *testing.T) {
	with(t, deafness, func(r *rig) {
		p := podOf("web", "sleep", "1000")
		p.Spec.Containers = append(p.Spec.Containers, containerNamed("deaf", "deaf"))
		r.create(p)
		var last *corev1.Pod
		r.api.refusing(func(verb string) error {
			if verb == "delete" {
				last = r.pod("web")
			}
			return nil
		})
		r.delete("web", 5)
		r.pass(10 * time.Second)
		require.Nil(t, r.pod("web"))
		require.NotNil(t, last)
		require.Equal(t, corev1.PodFailed, last.Status.Phase)
		require.Equal(t, "terminated: Error 143", state(last.Status.ContainerStatuses[0]))
		require.Equal(t, "terminated: Error 137", state(last.Status.ContainerStatuses[1]))
		require.Equal(t, corev1.ConditionFalse, conditionOf(last, corev1.PodReady).Status)
	})
}
