package controller

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

// A scheduler by itself gives a lost worker's actions up after a minute (WorkerWithNoSynchronizationsTimeout in
// bb_scheduler, a constant). A pod that is gone will not report again, so the scheduler learns it at once.

// losses remembers the pods of workers, to notice which have gone. After a restart of this process it knows none, and
// pods lost in the meantime cost the scheduler's minute.
type losses struct {
	mu   sync.Mutex
	seen map[engine.Request]map[string]bool
}

func newLosses() *losses { return &losses{seen: map[engine.Request]map[string]bool{}} }

// notice returns the pods of a part that ran when it was last called and do not any more.
func (l *losses) notice(part engine.Request, pods []*corev1.Pod) (gone []string) {
	running := make(map[string]bool, len(pods))
	for _, p := range pods {
		if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			running[p.Name] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.seen[part] {
		if !running[name] {
			gone = append(gone, name)
		}
	}
	l.seen[part] = running
	return gone
}

func (l *losses) forget(part engine.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, part)
}

// abandon tells a worker's scheduler that pods have gone. If it does not respond, it notices by itself later.
func (r *reconciler) abandon(ctx context.Context, w *buildbarn.BuildbarnWorker, pods []string) {
	s, err := r.scheduler(ctx, w)
	if err != nil {
		r.Log.Debug("there is no scheduler to tell that pods of workers have gone", "worker", w.Name, "error", err)
		return
	}
	actions, err := s.Lost(ctx, pods)
	if err != nil {
		r.Log.Debug("could not tell a scheduler that pods of workers have gone", "worker", w.Name, "error", err)
	}
	if actions > 0 {
		r.Log.Info("pods of workers have gone, and their clients start the actions again",
			"worker", w.Name, "pods", len(pods), "actions", actions)
	}
}

// schedulerOf returns the name of a worker's scheduler: the one that it names, its farm's, or the only one.
func (r *reconciler) schedulerOf(ctx context.Context, w *buildbarn.BuildbarnWorker) (string, error) {
	if w.Spec.Scale != nil {
		return w.Spec.Scale.Scheduler, nil
	}
	if farm := metav1.GetControllerOfNoCopy(w); farm != nil {
		return config.SchedulerOf(farm.Name), nil
	}
	var list buildbarn.BuildbarnSchedulerList
	if err := r.Cache.List(ctx, &list, client.InNamespace(w.Namespace)); err != nil {
		return "", err
	}
	if len(list.Items) != 1 {
		return "", fmt.Errorf("there are %d BuildbarnSchedulers in namespace %s instead of one", len(list.Items), w.Namespace)
	}
	return list.Items[0].Name, nil
}
