package scheduler

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// heartbeats reads when nodes last renewed their leases. It watches leases from the first time that it is asked.
type heartbeats struct {
	cache ctrlcache.Cache

	mu     sync.Mutex
	leases ctrlcache.Informer // nil until the first call
}

// of is the last heartbeat of a node: its lease's renewal or, as long as leases are not known, what its Ready condition says.
func (h *heartbeats) of(n *nodeInfo) time.Time {
	if h.known() {
		var lease coordinationv1.Lease
		err := h.cache.Get(context.Background(), ctrlclient.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: n.name}, &lease)
		if err == nil && lease.Spec.RenewTime != nil {
			return lease.Spec.RenewTime.Time
		}
	}
	return conditionHeartbeat(n)
}

// known reports whether leases can be read without waiting.
func (h *heartbeats) known() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leases == nil {
		leases, err := h.cache.GetInformer(context.Background(), &coordinationv1.Lease{}, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return false
		}
		h.leases = leases
	}
	return h.leases.HasSynced()
}

func conditionHeartbeat(n *nodeInfo) time.Time {
	for i := range n.node.Status.Conditions {
		if c := &n.node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}
