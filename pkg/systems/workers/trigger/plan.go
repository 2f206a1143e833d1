package trigger

import (
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/cron"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// actions are the results of a plan.
type actions struct {
	// status is the status of the triggers without what due changes.
	status []workers.TriggerStatus
	due    []message
	// again is the time until the next message; 0 means none.
	again time.Duration
}

// message is a message to send.
type message struct {
	queue.Message
	trigger int // its index
	at      time.Time
}

// plan decides which messages of a worker's triggers are due, by the rules of CronJobs. It does not change w.
func plan(w *workers.Worker, now time.Time) (a actions) {
	for i := range w.Spec.Triggers {
		t := &w.Spec.Triggers[i]
		if t.NATS != nil {
			a.status = append(a.status, subjectStatus(w, i, now))
			continue
		}
		since := metav1.NewTime(now.Truncate(time.Second))
		if t.Objects != nil {
			a.status = append(a.status, objectsStatus(w, i, since))
			continue
		}
		s := workers.TriggerStatus{Schedule: t.Schedule, TimeZone: t.TimeZone, Since: since}
		if i < len(w.Status.Triggers) {
			if is := w.Status.Triggers[i]; is.Schedule == s.Schedule && is.TimeZone == s.TimeZone {
				s = is
			}
		}
		p := cron.Plan(cron.Observed{CronJob: CronJob(t, s.Since, s.LastScheduleTime)}, now)
		s.NextScheduleTime = nil
		if p.Again > 0 {
			at := metav1.NewTime(now.Add(p.Again).Truncate(time.Second))
			s.NextScheduleTime = &at
			if a.again == 0 || p.Again < a.again {
				a.again = p.Again
			}
		} else if len(p.Events) > 0 {
			s.Failure = p.Events[0].Message
		}
		a.status = append(a.status, s)
		if p.Create != nil {
			a.due = append(a.due, messageOf(w, i, p.Scheduled))
		}
	}
	return a
}

// objectsStatus returns the status of a trigger with objects, as far as it has begun.
func objectsStatus(w *workers.Worker, i int, since metav1.Time) workers.TriggerStatus {
	t := w.Spec.Triggers[i].Objects
	if i < len(w.Status.Triggers) {
		is := w.Status.Triggers[i].DeepCopy()
		if s := is.Objects; s != nil && s.APIVersion == t.APIVersion && s.Kind == t.Kind {
			return *is
		}
	}
	return workers.TriggerStatus{
		Objects: &workers.ObjectsStatus{APIVersion: t.APIVersion, Kind: t.Kind}, Since: since,
	}
}

// CronJob returns a trigger as a CronJob, so that the rules for CronJobs apply.
func CronJob(t *workers.WorkerTrigger, since metav1.Time, last *metav1.Time) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "trigger", CreationTimestamp: since},
		Spec:       batchv1.CronJobSpec{Schedule: t.Schedule, StartingDeadlineSeconds: t.StartingDeadlineSeconds},
		Status:     batchv1.CronJobStatus{LastScheduleTime: last},
	}
	if t.TimeZone != "" {
		c.Spec.TimeZone = &t.TimeZone
	}
	return c
}

// messageOf returns the message of a trigger for a time. It has the same DedupID whenever and by whomever it is sent.
func messageOf(w *workers.Worker, i int, at time.Time) message {
	t := &w.Spec.Triggers[i]
	m := message{trigger: i, at: at, Message: queue.Message{
		DedupID: fmt.Sprintf("trigger %s %d %d", w.UID, i, at.Unix()), ContentType: "text/plain; charset=utf-8",
		Payload: []byte(t.Data),
	}}
	if t.Data == "" {
		m.Payload, _ = json.Marshal(map[string]string{ // cannot fail for strings
			"schedule": t.Schedule, "time": at.UTC().Format(time.RFC3339),
		})
	}
	if json.Valid(m.Payload) {
		m.ContentType = "application/json"
	}
	return m
}
