package commands

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestScheduleForATask checks the error for a schedule's name in place of a task's.
func TestScheduleForATask(t *testing.T) {
	scheme, err := command.Scheme()
	require.NoError(t, err)
	schedule := &tasks.TaskSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nightly"}}
	c := cluster{Cluster: &command.Cluster{
		Namespace: "default", Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(schedule).Build(),
	}}
	_, err = c.getTask(t.Context(), "nightly")
	require.ErrorIs(t, err, errNoTask)
	require.ErrorContains(t, err, "but a schedule or template: `coracle ps -a` lists its tasks, `coracle ctl delete "+
		"taskschedule nightly` deletes it")
	_, err = c.getTask(t.Context(), "other")
	require.EqualError(t, err, "there is no task other in namespace default: `coracle ps -a` lists tasks")
}
