// Package heartbeat records the last heartbeat of each node, from its Lease and the Ready condition in its status.
//
// It uses only the local clock, because nodes' clocks are not trusted.
package heartbeat

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Record holds the last heartbeat of each node. The zero Record is empty and treats each node as just heard from, which
// is right after a start. It is safe for concurrent use. Its size is proportional to the number of existing nodes.
type Record struct {
	mu    sync.Mutex
	heard map[string]time.Time // by node
	doubt map[string]time.Time // when a node was first found to be silent for most of a patience
}

// Silent returns the time since which a node counts as silent. It counts as lost if that is patience ago, and the
// caller calls Silent again after next, at the latest. If this process did not run, as while it was stopped, that call
// comes late: the node then has another quarter of patience to be heard from.
func (r *Record) Silent(node string, now time.Time, patience time.Duration) (since time.Time, next time.Duration) {
	since = r.Last(node, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	most := patience * 3 / 4
	if left := most - now.Sub(since); left > 0 {
		return since, left
	}
	at, ok := r.doubt[node]
	if !ok {
		if at = now; r.doubt == nil {
			r.doubt = map[string]time.Time{}
		}
		r.doubt[node] = at
	}
	if late := at.Add(-most); late.After(since) {
		since = late
	}
	return since, max(0, since.Add(patience).Sub(now))
}

// Last returns the time of a node's last heartbeat. The first call for an unknown node records now.
func (r *Record) Last(node string, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.heard[node]
	if !ok {
		at = now
		r.set(node, at)
	}
	return at
}

// Lease records a heartbeat if a node's Lease was renewed. was is nil for a new Lease.
func (r *Record) Lease(was, is client.Object, now time.Time) {
	b, ok := is.(*coordinationv1.Lease)
	if !ok || b.Namespace != corev1.NamespaceNodeLease {
		return
	}
	if a, ok := was.(*coordinationv1.Lease); !ok || !a.Spec.RenewTime.Equal(b.Spec.RenewTime) {
		r.hear(b.Name, now)
	}
}

// Node records a heartbeat if the node sent its status. A new node (was is nil) counts as heard from. A deleted
// node (is is nil) is forgotten.
func (r *Record) Node(was, is client.Object, now time.Time) {
	n, ok := is.(*corev1.Node)
	if !ok {
		if was != nil {
			r.mu.Lock()
			delete(r.heard, was.GetName())
			delete(r.doubt, was.GetName())
			r.mu.Unlock()
		}
		return
	}
	old, ok := was.(*corev1.Node)
	if !ok {
		r.Last(n.Name, now)
	} else if at := sent(n); !at.IsZero() && !at.Equal(sent(old)) {
		r.hear(n.Name, now)
	}
}

func (r *Record) hear(node string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(node, now)
}

func (r *Record) set(node string, at time.Time) {
	if r.heard == nil {
		r.heard = map[string]time.Time{}
	}
	r.heard[node] = at
	delete(r.doubt, node)
}

// sent returns the node's own timestamp of its last status, or nil.
func sent(n *corev1.Node) *metav1.Time {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return &n.Status.Conditions[i].LastHeartbeatTime
		}
	}
	return nil
}
