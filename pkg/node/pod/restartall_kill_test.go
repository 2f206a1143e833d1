package pod

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// A pod with restart policy Never fails when an init container of the new round fails.
func TestInitFailsAfterRestartingAll(t *testing.T) {
	j := &journal{}
	programs, ask := j.again()
	runs := 0
	programs["once"] = func(context.Context, *fake.Process) int { runs++; return runs - 1 }
	with(t, fake.Config{Programs: programs}, func(r *rig) {
		p := resetting()
		p.Spec.InitContainers[0].Command = []string{"once"}
		r.create(p)
		r.pass(10 * time.Second)
		ask()
		synctest.Wait()
		r.pass(10 * time.Second)
		require.Equal(t, corev1.PodFailed, r.pod("web").Status.Phase)
		require.Equal(t, "PodFailed", conditionOf(r.pod("web"), corev1.AllContainersRestarting).Reason)
		require.Equal(t, "terminated: Error 1", state(r.status("web", "first")))
		require.Empty(t, r.running())
		require.Equal(t, 1, j.count("b begins"))
	})
}

// Wherever an agent is killed while all containers restart, the next one continues: each starts once more.
func TestKilledWhileAllContainersRestart(t *testing.T) {
	calls := resetWith(t, 0, false)
	require.Greater(t, len(calls), 15, "%v", calls)
	for i, call := range calls {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s after=%t", i+1, call, after), func(t *testing.T) { resetWith(t, i+1, after) })
		}
	}
}

// resetWith restarts all containers of a pod, kills the Manager at the nth call, and returns all calls.
func resetWith(t *testing.T, nth int, after bool) []string {
	j, at := &journal{}, &interruption{nth: nth, after: after}
	programs, ask := j.again()
	with(t, fake.Config{Programs: programs}, func(r *rig) {
		r.create(resetting())
		r.pass(10 * time.Second)
		killed := make(chan struct{})
		at.kill = sync.OnceFunc(func() { r.stop(); close(killed) })
		r.wrapRuntime = func(inner runtime.Runtime) runtime.Runtime { return interrupted{inner, at} }
		refuse := func(call string) error { return at.do(call, func() error { return nil }) }
		r.restart()
		r.api.refusing(refuse)
		ask()
		for range 10 {
			synctest.Wait()
			select {
			case <-killed:
				if r.wrapRuntime != nil {
					r.wrapRuntime = nil
					r.api.refusing(nil)
					r.start()
				}
			default:
			}
			r.pass(time.Second)
		}
		require.ElementsMatch(t, []string{"side", "a", "b"}, r.running())
		require.Equal(t, corev1.ConditionTrue, conditionOf(r.pod("web"), corev1.PodReady).Status)
		require.Equal(t, corev1.ConditionFalse, conditionOf(r.pod("web"), corev1.AllContainersRestarting).Status)
		for _, name := range []string{"first", "side", "second", "a", "b"} {
			require.Equal(t, 2, j.count(name+" begins"), "%s: %v", name, j.list())
			require.EqualValues(t, 1, r.status("web", name).RestartCount, name)
		}
		require.Empty(t, j.twice)
	})
	return at.calls
}
