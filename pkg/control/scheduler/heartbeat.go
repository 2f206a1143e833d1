package scheduler

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/control/heartbeat"
)

// heartbeats records heartbeats. It watches leases from its first use. The scheduler's lock guards it.
type heartbeats struct {
	cache    ctrlcache.Cache
	leases   ctrlcache.Informer // nil until the first call
	patience time.Duration      // Config.TaskPatience
	heard    heartbeat.Record   // heartbeats since the start of the watch
	start    func()             // starts the watch; nil: no watch
	synced   func() bool
}

// of returns a node's last heartbeat by the node's clock: the renewal of its lease or, until leases are known, the
// heartbeat in its Ready condition.
func (h *heartbeats) of(n *nodeInfo) time.Time {
	if h.known() {
		var lease coordinationv1.Lease
		err := h.cache.Get(context.Background(), ctrlclient.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: n.name},
			&lease)
		if err == nil && lease.Spec.RenewTime != nil {
			return lease.Spec.RenewTime.Time
		}
	}
	return conditionHeartbeat(n)
}

func (h *heartbeats) known() bool {
	if h.leases == nil {
		leases, err := h.cache.GetInformer(context.Background(), &coordinationv1.Lease{}, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return false
		}
		h.leases = leases
	}
	return h.leases.HasSynced()
}

// silent reports whether a node sends no heartbeats, so that its tasks are lost or soon will be. A new attempt there
// would be lost, too.
func (h *heartbeats) silent(n *nodeInfo) bool {
	if h.start != nil {
		h.start()
		return h.synced() && h.overdue(n, h.heard.Last(n.name, now()))
	}
	last := h.of(n) // an explanation has no consequences, so it trusts the node's clock
	return !last.IsZero() && h.overdue(n, last)
}

// overdue reports whether tasks on a node with this last heartbeat are about to be lost. The task controller, which
// declares them lost, may have received the heartbeat earlier than this watch and so be earlier, too: 90% of the
// patience counts as all of it.
func (h *heartbeats) overdue(n *nodeInfo, last time.Time) bool {
	return now().Sub(last) >= tasks.Patience(n.node, h.patience)*9/10
}

func conditionHeartbeat(n *nodeInfo) time.Time {
	for i := range n.node.Status.Conditions {
		if c := &n.node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

// useHeartbeats makes the first pod of a task start the watch of leases, which runs until ctx ends.
func (s *Scheduler) useHeartbeats(ctx context.Context, wg *sync.WaitGroup) {
	s.heartbeats.start, s.heartbeats.synced = s.onDemand(ctx, wg, "leases", s.watchHeartbeats)
}

func (s *Scheduler) watchHeartbeats(ctx context.Context, synced func()) error {
	return s.follow(ctx, &coordinationv1.Lease{}, leaseHandler{s}, synced)
}

type leaseHandler struct{ s *Scheduler }

var _ toolscache.ResourceEventHandler = leaseHandler{}

func (h leaseHandler) OnAdd(o any, _ bool) { h.s.handle(o, func() { h.changed(nil, o) }) }
func (h leaseHandler) OnUpdate(was, o any) { h.s.handle(o, func() { h.changed(was, o) }) }
func (h leaseHandler) OnDelete(any)        {}

func (h leaseHandler) changed(was, is any) {
	before, _ := was.(ctrlclient.Object)
	lease, ok := is.(*coordinationv1.Lease)
	if !ok || lease.Namespace != corev1.NamespaceNodeLease {
		return
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.state.nodes[lease.Name] == nil {
		return // a new node counts as heard of; a deleted one may renew its lease once more
	}
	h.s.hear(lease.Name, func(heard *heartbeat.Record, at time.Time) { heard.Lease(before, lease, at) })
}

// hear records a possible heartbeat of a node, and retries the tasks that waited for it.
func (s *Scheduler) hear(node string, record func(*heartbeat.Record, time.Time)) {
	h := &s.heartbeats
	n := s.state.nodes[node]
	watched := h.synced != nil && h.synced()
	waited := watched && n != nil && n.node != nil && h.overdue(n, h.heard.Last(node, now()))
	record(&h.heard, now())
	if waited {
		s.help(n)
	}
}
