package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// TestLosses checks that a pod is noticed once when it has gone or failed, and not while it drains.
func TestLosses(t *testing.T) {
	l, part := newLosses(), engine.RequestFor("ns", "w")
	pods := workerPods(3)
	require.Empty(t, l.notice(part, pods))
	pods[0].DeletionTimestamp = &metav1.Time{Time: now}
	require.Empty(t, l.notice(part, pods), "it may end its actions")
	pods[2].Status.Phase = corev1.PodFailed
	require.Equal(t, []string{"p2"}, l.notice(part, pods))
	require.Equal(t, []string{"p0"}, l.notice(part, pods[1:]))
	require.Empty(t, l.notice(part, pods[1:2]))
	require.Empty(t, l.notice(engine.RequestFor("ns", "other"), nil))
	l.forget(part)
	require.Empty(t, l.notice(part, nil))
}

// TestSchedulerOf checks which scheduler learns about a worker's pods.
func TestSchedulerOf(t *testing.T) {
	scheduler := func(name string) *buildbarn.BuildbarnScheduler {
		return &buildbarn.BuildbarnScheduler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	objects := fake.NewClientBuilder().WithScheme(client.Scheme()).WithObjects(scheduler("only")).Build()
	r := &reconciler{Env: engine.Env{Cache: objects}}
	w := newPartOf("worker").(*buildbarn.BuildbarnWorker)
	of := func() string {
		name, err := r.schedulerOf(t.Context(), w)
		require.NoError(t, err)
		return name
	}
	require.Equal(t, "only", of())
	require.NoError(t, objects.Create(t.Context(), scheduler("second")))
	_, err := r.schedulerOf(t.Context(), w)
	require.ErrorContains(t, err, "there are 2 BuildbarnSchedulers in namespace ns")
	w.OwnerReferences = []metav1.OwnerReference{{Kind: "Buildbarn", Name: "farm", Controller: new(true)}}
	require.Equal(t, "farm-scheduler", of())
	w.Spec.Scale = &buildbarn.WorkerScale{Scheduler: "named"}
	require.Equal(t, "named", of())
}
