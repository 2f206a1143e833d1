package scheduler

import (
	"context"
	"sync"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// useGangs makes the first pod of a group start the watch of pod groups, which runs until ctx ends. Other API
// servers may not have the kind.
func (s *Scheduler) useGangs(ctx context.Context, wg *sync.WaitGroup) {
	g := s.state.gangs
	g.start, g.synced = s.onDemand(ctx, wg, "pod groups", s.watchGangs)
}

func (s *Scheduler) watchGangs(ctx context.Context, synced func()) error {
	return s.follow(ctx, &schedulingv1beta1.PodGroup{}, gangHandler{s}, func() {
		synced()
		for key := range s.queue.gangs {
			s.helpGang(key)
		}
	})
}

// gangHandler retries the pods of a group that was created or changed.
type gangHandler struct{ s *Scheduler }

var _ toolscache.ResourceEventHandler = gangHandler{}

func (h gangHandler) OnAdd(o any, _ bool) { h.s.handle(o, func() { h.changed(nil, o) }) }
func (h gangHandler) OnUpdate(was, o any) { h.s.handle(o, func() { h.changed(was, o) }) }
func (h gangHandler) OnDelete(any)        {}

func (h gangHandler) changed(was, is any) {
	before, _ := was.(*schedulingv1beta1.PodGroup)
	after, ok := is.(*schedulingv1beta1.PodGroup)
	if !ok || before != nil && before.UID == after.UID && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return // only the status changed; pod groups have no generation
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.helpGang(ctrlclient.ObjectKeyFromObject(after))
}

// helpGang retries the waiting pods of a group. The first one schedules the whole gang.
func (s *Scheduler) helpGang(key types.NamespacedName) {
	at := now()
	for p := range s.queue.gangs[key] {
		if p.where == unschedulable {
			p.attempts = 0 // retry at once
			s.queue.retry(p, at)
		}
	}
}
