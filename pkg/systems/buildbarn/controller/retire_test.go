package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
)

func workerPods(n int) (list []*corev1.Pod) {
	for i := range n {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name:              fmt.Sprintf("p%d", i),
				Namespace:         "ns",
				CreationTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Second)),
			},
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		list = append(list, p)
	}
	return list
}

// TestLeaving checks that idle workers leave before busy ones, and that marked workers stay marked.
func TestLeaving(t *testing.T) {
	pods := workerPods(6)
	pods[2].Status.Conditions = nil // not ready
	pods[3].DeletionTimestamp = &metav1.Time{Time: now}
	busy := map[string]int{"p5": 3, "p4": 1, "p0": 1}
	names := func(n int32) (out []string) {
		for _, p := range leaving(pods, busy, n) {
			out = append(out, p.Name)
		}
		return out
	}
	require.Equal(t, []string{"p2", "p1", "p4"}, names(3))
	require.Len(t, names(100), 5)
	pods[5].Annotations = map[string]string{buildbarn.AnnotationRetired: "true"}
	require.Equal(t, []string{"p5", "p2"}, names(2))
}

// TestRetire checks that a pool that shrinks retires workers and one that grows does not, and that a pod that was
// retired but kept by the ReplicaSet is deleted.
func TestRetire(t *testing.T) {
	w := newWorld("worker")
	w.Part.(*buildbarn.BuildbarnWorker).Spec.Scale = &buildbarn.WorkerScale{Max: 4, Scheduler: "s"}
	at := func(queued int32, after time.Duration) Actions {
		w.Queue = &metrics.Queue{Queued: queued}
		a := Plan(w.checked(), now.Add(after))
		w.apply(a)
		return a
	}
	at(3, 0)
	require.EqualValues(t, 3, *w.Deployment.Spec.Replicas)
	require.Zero(t, at(1, time.Second).Retire)
	w.Pods = workerPods(3)
	require.EqualValues(t, 2, at(1, 2*time.Minute).Retire)
	w.Pods = w.Pods[:1]
	w.Pods[0].Annotations = map[string]string{buildbarn.AnnotationRetired: "true"}
	a := at(1, 3*time.Minute)
	require.Zero(t, a.Retire)
	require.Len(t, a.Delete, 1, "the scheduler gives it nothing")
	w.Deployment.Status.Replicas = 2 // another pod is terminating
	w.Queue = &metrics.Queue{Queued: 1}
	require.Empty(t, Plan(w.checked(), now.Add(3*time.Minute)).Delete)
}
