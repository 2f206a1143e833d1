package trigger

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

func hasSubjects(w *workers.Worker) bool {
	return slices.ContainsFunc(w.Spec.Triggers, func(t workers.WorkerTrigger) bool { return t.NATS != nil })
}

// subjectStatus returns the status of a trigger with a NATS subject, without its failure.
func subjectStatus(w *workers.Worker, i int, now time.Time) workers.TriggerStatus {
	t := w.Spec.Triggers[i].NATS
	if i < len(w.Status.Triggers) {
		if is := w.Status.Triggers[i]; is.NATS != nil && *is.NATS == *t {
			return is
		}
	}
	return workers.TriggerStatus{NATS: t, Since: metav1.NewTime(now.Truncate(time.Second))}
}

// setSubjects has the NATS subjects of a worker read by this server, which keeps its queue.
func (c *Config) setSubjects(ctx context.Context, w *workers.Worker, status []workers.TriggerStatus) error {
	if hasSubjects(w) {
		if err := c.Home(ctx, w); err != nil {
			return err
		}
	}
	for i, failure := range c.Subjects.Set(w) {
		status[i].Failure = failure
	}
	return nil
}
