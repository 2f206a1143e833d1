package trigger

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	"github.com/coracle-dev/coracle/pkg/systems/workers/subject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster with one worker and one queue, as process sees them.
type world struct {
	client.Interface
	worker    workers.Worker
	sent      []queue.Message
	known     map[string]bool // the DedupIDs
	refusal   error           // of Send
	broken    error           // of the status
	elsewhere bool
	homes     int // how often this server became the queue's
	subjects  *subject.Subjects
}

type worldCache struct {
	ctrlcache.Cache
	w *world
}

func (w *world) Cache() ctrlcache.Cache         { return worldCache{w: w} }
func (w *world) Status() ctrl.SubResourceWriter { return statusOf{w: w} }

type statusOf struct {
	ctrl.SubResourceWriter
	w *world
}

func (c worldCache) Get(_ context.Context, _ ctrl.ObjectKey, o ctrl.Object, _ ...ctrl.GetOption) error {
	c.w.worker.DeepCopyInto(o.(*workers.Worker))
	return nil
}

func (s statusOf) Patch(_ context.Context, o ctrl.Object, p ctrl.Patch, _ ...ctrl.SubResourcePatchOption) error {
	if s.w.broken != nil {
		return s.w.broken
	}
	text, err := p.Data(o)
	if err != nil {
		return err
	}
	s.w.worker.Status.Triggers = nil
	return json.Unmarshal(text, &s.w.worker)
}

func (w *world) send(_ context.Context, _ types.NamespacedName, m queue.Message) error {
	if w.refusal != nil {
		return w.refusal
	}
	if !w.known[m.DedupID] {
		w.known[m.DedupID] = true
		w.sent = append(w.sent, m)
	}
	return nil
}

// run is what Run does with the worker until a time.
func (w *world) run(t *testing.T, until time.Duration) {
	c := &Config{
		Client: w, Send: w.send, Elsewhere: func(context.Context, *workers.Worker) bool { return w.elsewhere },
		Home:   func(context.Context, *workers.Worker) error { w.homes++; return nil },
		Logger: slog.New(slog.DiscardHandler), Subjects: w.subjects,
	}
	for end := time.Now().Add(until); ; {
		again, err := c.process(t.Context(), types.NamespacedName{}, newObjects(t.Context(), c, nil))
		if err != nil {
			require.ErrorIs(t, err, w.broken)
			again = time.Second
		}
		if again == 0 || time.Now().Add(again).After(end) {
			time.Sleep(time.Until(end))
			return
		}
		time.Sleep(again)
	}
}

func (w *world) texts() (list []string) {
	for _, m := range w.sent {
		list = append(list, string(m.Payload))
	}
	return list
}

func worldOf(list ...workers.WorkerTrigger) *world {
	none := subject.New(subject.Config{NATS: &queue.NATS{}})
	w := &world{subjects: none, known: map[string]bool{}, worker: workers.Worker{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w", UID: "u", Generation: 1},
		Spec:       workers.WorkerSpec{Image: "i", Triggers: list},
	}}
	workers.Default(&w.worker)
	return w
}

// in runs f in a bubble, whose clock starts at 2000-01-01T00:00:00Z.
func in(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func TestMessagesOfSchedules(t *testing.T) {
	in(t, func(t *testing.T) {
		w := worldOf(workers.WorkerTrigger{Schedule: "*/5 * * * *", TimeZone: "UTC", Data: "five"},
			workers.WorkerTrigger{Schedule: "3 * * * *", TimeZone: "UTC"},
			workers.WorkerTrigger{Schedule: "7 2 * * *", TimeZone: "Europe/Berlin", Data: "Berlin"})
		w.run(t, time.Second)
		require.Empty(t, w.sent, "a schedule begins with its next time")
		require.Equal(t, "2000-01-01T00:05:00Z", w.worker.Status.Triggers[0].NextScheduleTime.UTC().Format(time.RFC3339))
		require.Equal(t, "2000-01-01T01:07:00Z", w.worker.Status.Triggers[2].NextScheduleTime.UTC().Format(time.RFC3339))
		w.run(t, 11*time.Minute)
		require.Equal(t, []string{`{"schedule":"3 * * * *","time":"2000-01-01T00:03:00Z"}`, "five", "five"}, w.texts())
		require.Equal(t, "application/json", w.sent[0].ContentType)
		require.Equal(t, "text/plain; charset=utf-8", w.sent[1].ContentType)
		require.Equal(t, "trigger u 0 946685100", w.sent[1].DedupID)
		w.run(t, 58*time.Minute)
		require.Equal(t, "Berlin", w.texts()[len(w.sent)-1])
	})
}

// TestMissedTimes checks that after a pause the latest missed time counts, within its limit.
func TestMissedTimes(t *testing.T) {
	in(t, func(t *testing.T) {
		short := int64(30)
		w := worldOf(workers.WorkerTrigger{Schedule: "* * * * *", TimeZone: "UTC"},
			workers.WorkerTrigger{Schedule: "*/2 * * * *", TimeZone: "UTC", Data: "short", StartingDeadlineSeconds: &short})
		w.run(t, time.Second)
		time.Sleep(10*time.Minute + 40*time.Second) // the server is off, until 00:10:41
		w.run(t, 10*time.Second)
		require.Equal(t, []string{`{"schedule":"* * * * *","time":"2000-01-01T00:10:00Z"}`}, w.texts())
		w.run(t, 2*time.Minute)
		require.Len(t, w.sent, 4, "00:11, 00:12 and the short one's 00:12")
	})
}

// TestOnce checks that a message whose time was not recorded is sent again with the same DedupID.
func TestOnce(t *testing.T) {
	in(t, func(t *testing.T) {
		w := worldOf(workers.WorkerTrigger{Schedule: "* * * * *", TimeZone: "UTC"})
		w.run(t, time.Second)
		w.broken = errors.New("killed")
		w.run(t, time.Minute+10*time.Second)
		require.Len(t, w.sent, 1)
		require.Nil(t, w.worker.Status.Triggers[0].LastScheduleTime)
		w.broken = nil
		w.run(t, time.Second)
		require.Len(t, w.sent, 1)
		require.Equal(t, int64(946684860), w.worker.Status.Triggers[0].LastScheduleTime.Unix())
	})
}

func TestAFullQueueIsTriedAgain(t *testing.T) {
	in(t, func(t *testing.T) {
		w := worldOf(workers.WorkerTrigger{Schedule: "0 * * * *", TimeZone: "UTC"})
		w.refusal = errors.New("full")
		w.run(t, time.Hour+time.Second)
		require.Equal(t, "full", w.worker.Status.Triggers[0].Failure)
		w.refusal = nil
		w.run(t, 11*time.Second)
		require.Len(t, w.sent, 1)
		require.Empty(t, w.worker.Status.Triggers[0].Failure)
	})
}

// TestAnotherServerSends checks that a server does nothing while another one keeps the queue, and sends the latest
// message once it is lost.
func TestAnotherServerSends(t *testing.T) {
	in(t, func(t *testing.T) {
		w := worldOf(workers.WorkerTrigger{Schedule: "* * * * *", TimeZone: "UTC"})
		w.run(t, time.Second)
		w.elsewhere = true
		w.run(t, 3*time.Minute)
		require.Empty(t, w.sent)
		w.elsewhere = false
		w.run(t, time.Minute)
		require.Equal(t, []string{
			`{"schedule":"* * * * *","time":"2000-01-01T00:03:00Z"}`, `{"schedule":"* * * * *","time":"2000-01-01T00:04:00Z"}`,
		}, w.texts())
	})
}

// TestChangedSchedules checks that a changed schedule has no missed times.
func TestChangedSchedules(t *testing.T) {
	in(t, func(t *testing.T) {
		w := worldOf(workers.WorkerTrigger{Schedule: "0 0 * * *", TimeZone: "UTC"})
		w.run(t, 12*time.Hour)
		w.worker.Spec.Triggers[0].Schedule = "0 11 * * *"
		w.run(t, time.Hour)
		require.Empty(t, w.sent)
		w.worker.Spec.Triggers = nil
		w.run(t, time.Second)
		require.Empty(t, w.worker.Status.Triggers)
		w.worker.Spec.Triggers = []workers.WorkerTrigger{{Schedule: "0 0 30 2 *"}}
		w.run(t, time.Second)
		require.Contains(t, w.worker.Status.Triggers[0].Failure, "never runs")
	})
}
