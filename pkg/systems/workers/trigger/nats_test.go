package trigger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// TestSubjectsInTheStatus checks that a worker's subjects have a place in its status, beside its schedules, and that
// only the queue's home reads them.
func TestSubjectsInTheStatus(t *testing.T) {
	in(t, func(t *testing.T) {
		trigger := &workers.NATSTrigger{Subject: "ns.orders"}
		w := worldOf(workers.WorkerTrigger{NATS: trigger}, workers.WorkerTrigger{Schedule: "*/5 * * * *", Data: "five"})
		w.elsewhere = true
		w.run(t, time.Second)
		require.Zero(t, w.homes)
		require.Empty(t, w.worker.Status.Triggers)
		w.elsewhere = false
		w.run(t, time.Second)
		require.Equal(t, 1, w.homes)
		synctest.Wait()
		w.run(t, 5*time.Minute)
		require.Equal(t, []string{"five"}, w.texts())
		is := w.worker.Status.Triggers
		require.Len(t, is, 2)
		require.Equal(t, trigger, is[0].NATS)
		require.Contains(t, is[0].Failure, "no option nats-context")
		require.Empty(t, is[1].Failure)
		since := is[0].Since

		w.worker.Spec.Triggers[0], w.worker.Spec.Triggers[1] = w.worker.Spec.Triggers[1], w.worker.Spec.Triggers[0]
		w.run(t, time.Second)
		require.NotEmpty(t, w.worker.Status.Triggers[1].Failure)
		w.run(t, time.Second)
		require.True(t, w.worker.Status.Triggers[1].Since.After(since.Time))
		w.subjects.Close()
	})
}
