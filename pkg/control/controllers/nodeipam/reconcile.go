// Package nodeipam allocates each node's pod CIDR from the cluster CIDR. Its invariant: no two nodes share a CIDR. It
// works on one node at a time.
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// New declares the reconciler.
func New(cluster netip.Prefix) *engine.Reconciler {
	var r *reconciler
	return &engine.Reconciler{
		Name: "nodeipam", Account: "node-controller", Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.Node{}, Event: func(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
				return r.see(was, is)
			}},
		},
		Writes: []engine.Write{{Object: &corev1.Node{}, Parts: []engine.Part{engine.Spec}}},
		New: func(env engine.Env) engine.Func {
			r = &reconciler{Env: env, pool: newPool(cluster), waiting: map[string]bool{}}
			return engine.Each(env, r.reconcile)
		},
	}
}

type reconciler struct {
	engine.Env

	mu      sync.Mutex
	pool    *pool           // CIDRs in node specs, and allocated ones that are not observed yet
	waiting map[string]bool // nodes for which no CIDR was free
}

// see updates the pool and returns the nodes to reconcile. A CIDR is released only when its node is deleted.
func (r *reconciler) see(was, is client.Object) []engine.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is == nil {
		r.pool.release(was.GetName())
		delete(r.waiting, was.GetName())
		var again []engine.Request
		for name := range r.waiting {
			again = append(again, engine.RequestFor("", name))
		}
		return again
	}
	n, ok := is.(*corev1.Node)
	switch {
	case !ok:
		return nil
	case nodestate.External(n):
		return nil // its pods have no addresses in the cluster
	case n.Spec.PodCIDR == "":
		return []engine.Request{engine.RequestFor("", n.Name)}
	}
	r.pool.hold(n.Name, append([]string{n.Spec.PodCIDR}, n.Spec.PodCIDRs...)...)
	return nil
}

func (r *reconciler) give(node string) (netip.Prefix, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.pool.plan(node)
	if err == nil {
		r.pool.hold(node, p.String())
		delete(r.waiting, node)
	}
	return p, err
}

// wait records that a node has no CIDR. It reports whether the node was not recorded before.
func (r *reconciler) wait(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.waiting[node]
	r.waiting[node] = true
	return !known
}

func (r *reconciler) takeBack(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool.release(node)
}

func (r *reconciler) reconcile(ctx context.Context, node *corev1.Node) (engine.Result, error) {
	if node.Spec.PodCIDR != "" || node.DeletionTimestamp != nil {
		return engine.Result{}, nil
	}
	p, err := r.give(node.Name)
	if errors.Is(err, ErrFull) {
		if r.wait(node.Name) {
			r.Events.Event(node, corev1.EventTypeWarning, "CIDRNotAvailable", "%v", err)
		}
		return engine.Result{}, nil // the deletion of another node enqueues it
	}
	if err != nil {
		return engine.Result{}, err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": p.String(), "podCIDRs": []string{p.String()}},
	})
	if err != nil {
		return engine.Result{}, err
	}
	err = r.Client.Patch(ctx, node.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsNotFound(err) {
		r.takeBack(node.Name)
	}
	return engine.Result{}, err // the retry uses the same CIDR, in case the write succeeded
}
