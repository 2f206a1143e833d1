package scheduler

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
)

type withoutCache struct{ ctrlclient.WithWatch }

func (withoutCache) Cache() ctrlcache.Cache { return nil }

// Events about a task's pod are recorded only if their state lasts for a while; others are recorded at once.
func TestEventsOfBriefTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withoutCache{fake.NewClientBuilder().WithScheme(client.Scheme()).Build()}
		s := &Scheduler{
			log:    slog.New(slog.DiscardHandler),
			queue:  newQueue(),
			state:  newState(10, nil),
			late:   late{},
			events: events.New(c, "default-scheduler", "", nil),
		}
		s.metrics, s.guard, s.queue.later = newMetrics(nil, s), run.Guard{Log: s.log}, func(*pending) {}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go s.events.Run(ctx)
		reasons := func() (out []string) {
			synctest.Wait()
			var list corev1.EventList
			require.NoError(t, c.List(ctx, &list))
			for i := range list.Items {
				out = append(out, list.Items[i].InvolvedObject.Name+" "+list.Items[i].Reason)
			}
			return out
		}

		nodeHandler{s}.OnAdd(testNode("a"), false)
		for _, p := range []*corev1.Pod{
			testPod("large", cpu("8")), testPod("large-task", cpu("8"), ofTask), testPod("gone", cpu("8"), ofTask),
		} {
			podHandler{s}.OnAdd(p, false)
		}
		for _, p := range s.queue.pods {
			s.record(p.info.pod, p.since, corev1.EventTypeWarning, "FailedScheduling", "no room")
		}
		require.Equal(t, []string{"large FailedScheduling"}, reasons())
		podHandler{s}.OnDelete(s.queue.pods["gone"].info.pod)
		time.Sleep(lateAfter - time.Second)
		require.Len(t, reasons(), 1)
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"large FailedScheduling", "large-task FailedScheduling"}, reasons())
		time.Sleep(time.Second) // event names contain the time
		s.record(s.queue.pods["large-task"].info.pod, s.queue.pods["large-task"].since, corev1.EventTypeWarning,
			"FailedScheduling", "still no room")
		require.Len(t, reasons(), 3, "it has waited for long enough")

		brief, long, waiting := testPod("brief", ofTask), testPod("long", ofTask), testPod("late", ofTask)
		for _, p := range []*corev1.Pod{brief, long, waiting} {
			podHandler{s}.OnAdd(p, false)
			s.record(p, now(), corev1.EventTypeWarning, "FailedScheduling", "no room yet")
		}
		for _, p := range []*corev1.Pod{brief, long} {
			p.Spec.NodeName = "a"
			podHandler{s}.OnUpdate(p, p)
			s.record(p, now(), corev1.EventTypeNormal, "Scheduled", "assigned")
		}
		ended := brief.DeepCopy()
		ended.Status.Phase = corev1.PodSucceeded
		podHandler{s}.OnUpdate(brief, ended)
		time.Sleep(lateAfter)
		require.Len(t, reasons(), 5)
		require.Subset(t, reasons(), []string{"long Scheduled", "late FailedScheduling"})

		last := testPod("last", ofTask)
		podHandler{s}.OnAdd(last, false)
		s.record(last, now(), corev1.EventTypeWarning, "FailedScheduling", "no room")
		old := s.late[last.UID]
		s.record(last, now(), corev1.EventTypeWarning, "FailedScheduling", "no room, for another reason")
		require.False(t, s.due(last.UID, old, "FailedScheduling"), "its timer had fired before there was a newer event")
		require.NotNil(t, s.late[last.UID])
		s.drop()
		s.record(last, now(), corev1.EventTypeNormal, "Scheduled", "by a write that was under way")
		time.Sleep(lateAfter)
		require.Len(t, reasons(), 5, "the scheduler has stopped")
	})
}
