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

// heartbeats knows when nodes were last heard of. It watches their leases from the first time that it is asked. It is
// guarded by the scheduler's lock.
type heartbeats struct {
	cache    ctrlcache.Cache
	leases   ctrlcache.Informer // nil until the first call
	patience time.Duration      // as in Config.TaskPatience
	heard    heartbeat.Record   // what arrived since leases are watched
	start    func()             // begins to record; nil if nothing is recorded
	synced   func() bool
}

// of is the last heartbeat of a node by its own clock: its lease's renewal or, as long as leases are not known, what
// its Ready condition says.
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

// known reports whether leases can be read without waiting.
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

// silent reports whether tasks on a node have been lost, or are about to be, because the node sends no heartbeats:
// another attempt would be lost there too.
func (h *heartbeats) silent(n *nodeInfo) bool {
	if h.start != nil {
		h.start()
		return h.synced() && h.overdue(n, h.heard.Last(n.name, now()))
	}
	last := h.of(n) // an explanation causes no action, so it trusts the node's clock
	return !last.IsZero() && h.overdue(n, last)
}

// overdue reports whether tasks are about to be lost on a node that was heard of last at that time. The task
// controller, which declares them lost, may see heartbeats earlier than this watch: the last tenth of the time counts
// as over.
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

// useHeartbeats lets the first pod of a task begin to watch leases, until ctx ends.
func (s *Scheduler) useHeartbeats(ctx context.Context, wg *sync.WaitGroup) {
	s.heartbeats.start, s.heartbeats.synced = s.onDemand(ctx, wg, "leases", s.watchHeartbeats)
}

func (s *Scheduler) watchHeartbeats(ctx context.Context, synced func()) error {
	return s.follow(ctx, &coordinationv1.Lease{}, leaseHandler{s}, synced)
}

// leaseHandler records heartbeats.
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
		return // a new node counts as heard of; a deleted one may still renew its lease once
	}
	h.s.hear(lease.Name, func(heard *heartbeat.Record, at time.Time) { heard.Lease(before, lease, at) })
}

// hear records what may be a heartbeat of a node, and retries the tasks that wait for one that was silent.
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
