package trigger

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
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

// followNodes calls again for workers with subjects when a server may have left the cluster.
func (c *Config) followNodes(ctx context.Context, again func(types.NamespacedName)) (end func(), err error) {
	return client.Follow(ctx, c.Client.Cache(), &corev1.Node{}, toolscache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) {
			var all workers.WorkerList
			_ = c.Client.Cache().List(ctx, &all)
			for i := range all.Items {
				if hasSubjects(&all.Items[i]) {
					again(ctrl.ObjectKeyFromObject(&all.Items[i]))
				}
			}
		},
	})
}
