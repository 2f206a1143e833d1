package task

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// TestPace checks that progress is written when a node is chosen, and then at most every 200 ms, and an end at once.
func TestPace(t *testing.T) {
	name, start := types.NamespacedName{Namespace: "n", Name: "a"}, time.Unix(1000, 0)
	status := func(phase tasks.TaskPhase, ended int32) *tasks.TaskStatus {
		return &tasks.TaskStatus{Phase: phase, EndedAttempts: ended}
	}
	type step struct {
		at        time.Duration
		was, next *tasks.TaskStatus
		want      time.Duration
	}
	const ms = time.Millisecond
	for title, steps := range map[string][]step{
		"one that ends within moments": {
			{0, status("", 0), status(tasks.TaskPending, 0), settle},
			{10 * ms, status("", 0), status(tasks.TaskScheduled, 0), 0},
			{50 * ms, status(tasks.TaskScheduled, 0), status(tasks.TaskRunning, 0), settle - 40*ms},
			{90 * ms, status(tasks.TaskScheduled, 0), status(tasks.TaskCompleted, 1), 0},
		},
		"one that waits, then lasts": {
			{0, status("", 0), status(tasks.TaskPending, 0), settle},
			{settle, status("", 0), status(tasks.TaskPending, 0), 0},
			{settle + 10*ms, status(tasks.TaskPending, 0), status(tasks.TaskScheduled, 0), settle - 10*ms},
			{2 * settle, status(tasks.TaskPending, 0), status(tasks.TaskRunning, 0), 0},
		},
		"one that is tried again": {
			{0, status("", 0), status(tasks.TaskScheduled, 0), 0},
			{10 * ms, status(tasks.TaskScheduled, 0), status(tasks.TaskPending, 1), 0},
			{20 * ms, status(tasks.TaskPending, 1), status(tasks.TaskScheduled, 1), settle - 10*ms},
		},
		"the clock is set back": {
			{time.Hour, status("", 0), status(tasks.TaskScheduled, 0), 0},
			{0, status(tasks.TaskScheduled, 0), status(tasks.TaskRunning, 0), 0},
		},
	} {
		t.Run(title, func(t *testing.T) {
			p := &pace{at: map[types.NamespacedName]progress{}}
			for i, s := range steps {
				require.Equal(t, s.want, p.hold(name, s.was, s.next, start.Add(s.at)), "step %d", i)
			}
		})
	}

	p := &pace{at: map[types.NamespacedName]progress{}}
	p.hold(name, status("", 0), status(tasks.TaskScheduled, 0), start)
	p.hold(name, status(tasks.TaskScheduled, 0), status(tasks.TaskFailed, 1), start)
	require.Empty(t, p.at, "nothing is held for tasks that have ended")
	p.hold(name, status("", 0), status(tasks.TaskScheduled, 0), start)
	p.forget(name)
	require.Empty(t, p.at)

	for i := range 10 * leastSwept {
		p.hold(types.NamespacedName{Name: fmt.Sprint(i)}, status("", 0), status(tasks.TaskScheduled, 0),
			start.Add(time.Duration(i)*time.Millisecond))
		require.LessOrEqual(t, len(p.at), leastSwept, "what somebody else ended is not held forever")
	}
}
