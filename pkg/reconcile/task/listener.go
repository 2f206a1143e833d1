package task

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine/podstate"
)

// listener records the time of each node's last heartbeat by the local clock, as nodes' clocks are not trusted. After a start, every node is
// as if it had just been heard of.
type listener struct {
	mu    sync.Mutex
	heard map[string]time.Time // by node
}

func newListener() *listener { return &listener{heard: map[string]time.Time{}} }

func (l *listener) hear(node string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[node] = at
}

// last returns when a node was heard of last; otherwise if it never was.
func (l *listener) last(node string, otherwise time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.heard[node]
	if !ok {
		at = otherwise
		l.heard[node] = at
	}
	return at
}

// lease records a heartbeat. It enqueues nothing: attempts are looked at again when their node's patience ends.
func (l *listener) lease(env engine.Env, was, is client.Object) []engine.Request {
	b, ok := is.(*coordinationv1.Lease)
	if !ok || b.Namespace != corev1.NamespaceNodeLease {
		return nil
	}
	if a, ok := was.(*coordinationv1.Lease); !ok || !a.Spec.RenewTime.Equal(b.Spec.RenewTime) {
		l.hear(b.Name, env.Now())
	}
	return nil
}

// node records a heartbeat in a node's status. The tasks of a deleted node are enqueued.
func (l *listener) node(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if n, ok := is.(*corev1.Node); ok {
		if old, ok := was.(*corev1.Node); !ok || !beat(old).Equal(beat(n)) {
			l.hear(n.Name, env.Now())
		}
		return nil
	}
	l.mu.Lock()
	delete(l.heard, was.GetName())
	l.mu.Unlock()
	var pods corev1.PodList
	if err := env.ByIndex(ctx, &pods, "", podstate.NodeIndex, was.GetName()); err != nil {
		env.Log.Error("could not list the pods of a deleted node", "node", was.GetName(), "error", err)
		return nil
	}
	var out []engine.Request
	for i := range pods.Items {
		if ref := owner(&pods.Items[i]); ref != nil {
			out = append(out, engine.RequestFor(pods.Items[i].Namespace, ref.Name))
		}
	}
	return out
}

// beat returns the time of the last status that a node has sent.
func beat(n *corev1.Node) time.Time {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}
