package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// interrupted stops the Manager at its nth call to runtime, network or API, before or after the call takes effect.
type interrupted struct {
	runtime.Runtime
	at *interruption
}

type interruption struct {
	mu    sync.Mutex
	calls []string
	nth   int  // counted from 1; 0 means never
	after bool // the call takes effect first
	kill  func()
}

// call reports whether the call takes effect, and whether its caller gets the answer.
func (i *interruption) call(name string) (effect, answer bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.nth > 0 && len(i.calls) >= i.nth { // the process is dead
		return false, false
	}
	i.calls = append(i.calls, name)
	if len(i.calls) != i.nth {
		return true, true
	}
	go i.kill()
	return i.after, false
}

var errKilled = errors.New("the process was killed")

func (i *interruption) do(name string, f func() error) error {
	effect, answer := i.call(name)
	var err error
	if effect {
		err = f()
	}
	if !answer {
		return errKilled
	}
	return err
}

func (r interrupted) Create(ctx context.Context, s runtime.Spec) error {
	return r.at.do("create "+s.Labels[labelName], func() error { return r.Runtime.Create(ctx, s) })
}

func (r interrupted) Start(ctx context.Context, id string) error {
	return r.at.do("start", func() error { return r.Runtime.Start(ctx, id) })
}

func (r interrupted) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	return r.at.do("signal", func() error { return r.Runtime.Signal(ctx, id, sig, all) })
}

func (r interrupted) Remove(ctx context.Context, id string) error {
	return r.at.do("remove", func() error { return r.Runtime.Remove(ctx, id) })
}

func (r interrupted) RemovePod(ctx context.Context, uid, cgroup string) error {
	return r.at.do("remove pod", func() error { return r.Runtime.RemovePod(ctx, uid, cgroup) })
}

// lifeWith runs the manifold pod from creation to end, kills the Manager at the nth call, and returns all calls.
func lifeWith(t *testing.T, nth int, after bool) []string {
	j, at := &journal{}, &interruption{nth: nth, after: after}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		killed := make(chan struct{})
		at.kill = sync.OnceFunc(func() { r.stop(); close(killed) })
		r.wrapRuntime = func(inner runtime.Runtime) runtime.Runtime { return interrupted{inner, at} }
		refuse := func(call string) error { return at.do(call, func() error { return nil }) }
		r.network.refusing(refuse)
		r.api.refusing(refuse)
		r.restart()
		next := func() { // starts the next process if this one was killed
			synctest.Wait()
			select {
			case <-killed:
				if r.wrapRuntime != nil {
					r.wrapRuntime = nil
					r.network.refusing(nil)
					r.api.refusing(nil)
					r.start()
				}
			default:
			}
		}
		r.create(manifold())
		for range 10 {
			next()
			r.pass(time.Second)
		}
		require.ElementsMatch(t, []string{"side", "a", "b"}, r.running())
		p := r.pod("web")
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, corev1.PodReady).Status)
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, s := range list {
				require.Zero(t, s.RestartCount, s.Name)
			}
		}
		r.delete("web", 30)
		for range 10 {
			next()
			r.pass(time.Second)
		}
		require.Nil(t, r.pod("web"))
		r.requireNothingLeft()
		for _, name := range []string{"first", "side", "second", "a", "b"} {
			require.Equal(t, 1, j.count(name+" begins"), "%s: %v", name, j.list())
		}
		require.Empty(t, j.twice)
	})
	return at.calls
}

// Wherever an agent is killed, the next one continues: no container starts twice, and nothing is left in the end.
func TestKilledAtEachCall(t *testing.T) {
	calls := lifeWith(t, 0, false)
	require.Greater(t, len(calls), 15, "%v", calls)
	for i, call := range calls {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s after=%t", i+1, call, after), func(t *testing.T) { lifeWith(t, i+1, after) })
		}
	}
}
