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

// useGangs lets the first pod of a group begin to watch pod groups, until ctx ends: API servers of others need not have
// them.
func (s *Scheduler) useGangs(ctx context.Context, wg *sync.WaitGroup) {
	g := s.state.gangs
	g.start, g.synced = s.onDemand(ctx, wg, "pod groups", s.watchGangs)
}

func (s *Scheduler) watchGangs(ctx context.Context, synced func()) error {
	return s.follow(ctx, &schedulingv1beta1.PodGroup{}, gangHandler{s}, func() {
		synced()
		for key := range s.queue.groups {
			s.helpGroup(key)
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
		return // its status; groups have no generation
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.helpGroup(ctrlclient.ObjectKeyFromObject(after))
}

// helpGroup retries the waiting pods of a group. The first of a gang to be tried takes the others along.
func (s *Scheduler) helpGroup(key types.NamespacedName) {
	at := now()
	for p := range s.queue.groups[key] {
		if p.where == unschedulable {
			p.attempts = 0 // this is news
			s.queue.retry(p, at)
		}
	}
}
