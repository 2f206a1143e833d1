package commands

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestScheduleForATask checks the error for a schedule's name in place of a task's.
func TestScheduleForATask(t *testing.T) {
	scheme, err := command.Scheme()
	require.NoError(t, err)
	schedule := &tasks.TaskSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nightly"}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	c := cluster{Cluster: &command.Cluster{
		Namespace: "default", Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(schedule, namespace).Build(),
	}}
	_, err = c.getTask(t.Context(), "nightly")
	require.NotErrorIs(t, err, errNoTask, "`coracle logs` would speak of pods")
	require.ErrorContains(t, err, "but a schedule or template: `coracle ps -a` lists its tasks, `coracle ctl delete "+
		"taskschedule nightly` deletes it")
	for _, o := range []RunOptions{{}, {Schedule: "@daily"}} {
		o.Name, o.Image, o.After = "alarm", "i", []string{"later", "nightly:failed"}
		err = c.Run(t.Context(), o, command.Standard())
		require.ErrorContains(t, err, "--after nightly: nightly is a schedule, and --after waits once for one task")
	}
	_, err = c.getTask(t.Context(), "other")
	require.EqualError(t, err, "there is no task other in namespace default: `coracle ps -a` lists tasks")
	require.ErrorIs(t, err, errNoTask)
	c.Namespace = "defalut"
	_, err = c.getTask(t.Context(), "other")
	require.ErrorContains(t, err, "there is no namespace defalut: did you mean default?")
	c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{
		List: func(ctx context.Context, w ctrl.WithWatch, list ctrl.ObjectList, opts ...ctrl.ListOption) error {
			if _, ofTasks := list.(*tasks.TaskList); ofTasks { // the fake client has no field selectors
				return nil
			}
			return w.List(ctx, list, opts...)
		},
	})
	require.ErrorContains(t, c.Tasks(t.Context(), false, command.Standard()), "did you mean default?")
}
