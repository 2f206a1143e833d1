package scheduler

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

// A pod on which the scheduler panics backs off, and is scheduled once the cause is gone. Others are not affected.
func TestAPodThatPanics(t *testing.T) {
	broken := true
	s := &Scheduler{log: slog.New(slog.DiscardHandler), queue: newQueue(),
		state: newState(10, func(string) map[string]string {
			if broken {
				panic("injected")
			}
			return map[string]string{"a": "b"}
		})}
	s.metrics = newMetrics(nil, s)
	s.guard = run.Guard{Log: s.log}
	s.queue.later = func(*pending) {}
	defer s.drop()
	nodeHandler{s}.OnAdd(testNode("a"), false)
	podHandler{s}.OnAdd(testPod("there", func(p *corev1.Pod) { p.Spec.NodeName = "a" }), false)
	bad := testPod("bad", priority(9), antiAffinity("app", "x", corev1.LabelHostname), func(p *corev1.Pod) {
		p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector =
			&metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	})
	podHandler{s}.OnAdd(bad, false)
	podHandler{s}.OnAdd(testPod("good"), false)
	s.next()(context.Background())
	p := s.queue.pods[bad.UID]
	require.Equal(t, backingOff, p.where)
	require.NotNil(t, s.next())
	require.Equal(t, "a", s.state.pods["good"].node.name)
	s.backedOff(p)
	attempts := p.attempts
	require.NotNil(t, s.next())
	require.Greater(t, p.attempts, attempts)
	require.EqualValues(t, 2, s.guard.Panics())
	broken = false
	s.backedOff(p)
	require.NotNil(t, s.next())
	require.Equal(t, "a", s.state.pods[bad.UID].node.name)
	require.True(t, s.mu.TryLock(), "the lock was left")
	s.mu.Unlock()

	// A panic in an event handler does not affect other events.
	nodeHandler{s}.OnUpdate(testNode("a"), (*corev1.Node)(nil))
	nodeHandler{s}.OnAdd(testNode("b"), false)
	require.NotNil(t, s.state.nodes["b"])
}
