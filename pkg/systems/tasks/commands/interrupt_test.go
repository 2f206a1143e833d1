package commands

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestQuestionEndsWithTheTask checks that the question whether to cancel a task does not outlast the task.
func TestQuestionEndsWithTheTask(t *testing.T) {
	scheme, err := command.Scheme()
	require.NoError(t, err)
	task := &tasks.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "t", UID: "u"}}
	running, ended := task.DeepCopy(), task.DeepCopy()
	running.Status.Phase, ended.Status.Phase = tasks.TaskRunning, tasks.TaskCompleted
	other := ended.DeepCopy()
	other.UID = "another task of this name"
	asked := func(in io.Reader, events ...watch.Event) (bool, *tasks.Task, string, error) {
		c := cluster{&command.Cluster{Namespace: "default", Client: interceptor.NewClient(
			fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
				Watch: func(context.Context, ctrl.WithWatch, ctrl.ObjectList, ...ctrl.ListOption) (watch.Interface, error) {
					w := watch.NewFakeWithChanSize(len(events), false)
					for _, e := range events {
						w.Action(e.Type, e.Object)
					}
					return w, nil
				},
			})}}
		var told strings.Builder
		yes, now, err := c.askToCancel(task, command.Terminal{In: in, Err: &told})
		return yes, now, told.String(), err
	}
	silent, terminal := io.Pipe()
	defer terminal.Close() // ends the reads of the answers that never come

	yes, now, told, err := asked(silent, watch.Event{Type: watch.Added, Object: running},
		watch.Event{Type: watch.Modified, Object: ended})
	require.NoError(t, err)
	require.False(t, yes)
	require.Equal(t, ended, now)
	require.Equal(t, "\nCancel task t? [y/N] \nIt has ended meanwhile: completed\n", told)

	for _, gone := range []watch.Event{{Type: watch.Deleted, Object: running}, {Type: watch.Added, Object: other}} {
		_, now, _, err = asked(silent, gone)
		require.Nil(t, now)
		require.EqualError(t, err, "task t was deleted before it ended")
	}

	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "\n": false, "no\n": false} {
		yes, now, _, err = asked(strings.NewReader(answer), watch.Event{Type: watch.Added, Object: running})
		require.NoError(t, err)
		require.Nil(t, now)
		require.Equal(t, want, yes, answer)
	}
}
