package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-dev/coracle/pkg/control/scheduler"
)

// TestStrandedPods checks that pods of unknown schedulers and on unknown nodes are known with the reason, until they
// have a node.
func TestStrandedPods(t *testing.T) {
	c := start(t)
	c.node("a", "1")
	foreign, silent, lost, gated := pod("foreign"), pod("silent"), pod("lost"), pod("gated")
	foreign.Spec.SchedulerName, silent.Spec.SchedulerName, gated.Spec.SchedulerName = "other", "typo", "typo"
	lost.Spec.NodeName = "nowhere"
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	for _, p := range []*corev1.Pod{foreign, silent, lost, gated, pod("placed")} {
		require.NoError(t, c.Create(c.ctx, p))
	}
	foreign = foreign.DeepCopy()
	foreign.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no room",
	}}
	require.NoError(t, c.Status().Update(c.ctx, foreign))

	s, err := scheduler.New(scheduler.Config{Client: c.engine.Clients.For(&user.DefaultInfo{Name: scheduler.Identity})})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-ended) }()
	<-s.Ready()
	reasons := func() map[string]string {
		pods, all := s.Stranded(10)
		require.Len(t, pods, all)
		of := map[string]string{}
		for _, p := range pods {
			require.Equal(t, "default", p.Namespace)
			require.False(t, p.Since.IsZero())
			of[p.Name] = p.Reason
		}
		return of
	}
	require.Equal(t, map[string]string{
		"foreign": "its scheduler other: no room",
		"silent":  "it waits for scheduler typo, which is not Coracle's",
		"lost":    "it names node nowhere, which does not exist",
	}, reasons())
	pods, all := s.Stranded(1)
	require.Len(t, pods, 1)
	require.Equal(t, 3, all)

	require.NoError(t, c.SubResource("binding").Create(c.ctx, foreign, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "foreign"},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "a"},
	}))
	require.NoError(t, c.Delete(c.ctx, silent))
	c.node("nowhere", "1")
	require.Eventually(t, func() bool { return len(reasons()) == 0 }, patience, time.Millisecond)
}
