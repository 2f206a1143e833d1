// Package nodeipam gives each node a network for its pods, out of the cluster's.
//
// It may import engine. Its invariant: no two nodes have one network; it works on one node at a time.
package nodeipam

import (
	"context"
	"encoding/json"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

// New declares the reconciler.
func New(cluster netip.Prefix) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "nodeipam", Account: "node-controller", Workers: 1,
		Watches: []engine.Watch{{Object: &corev1.Node{}, Changed: func(_, is client.Object) bool {
			n, ok := is.(*corev1.Node)
			return ok && n.Spec.PodCIDR == ""
		}}},
		Writes: []engine.Write{{Object: &corev1.Node{}, Parts: []engine.Part{engine.Spec}}},
		New: func(env engine.Env) engine.Func {
			given := map[string]string{} // by node; what a remote cache may not show yet
			return func(ctx context.Context, req engine.Request) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, req, cluster, given)
			}
		},
	}
}

func reconcile(ctx context.Context, env engine.Env, req engine.Request, cluster netip.Prefix, given map[string]string) error {
	var node corev1.Node
	if err := env.Cache.Get(ctx, req.NamespacedName, &node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if node.Spec.PodCIDR != "" || node.DeletionTimestamp != nil {
		return nil
	}
	var all corev1.NodeList
	if err := env.Cache.List(ctx, &all); err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range all.Items {
		there[all.Items[i].Name] = true
	}
	for name, cidr := range given {
		if !there[name] {
			delete(given, name)
			continue
		}
		all.Items = append(all.Items, corev1.Node{Spec: corev1.NodeSpec{PodCIDR: cidr}})
	}
	p, err := Plan(cluster, all.Items)
	if err != nil {
		env.Events.Event(&node, corev1.EventTypeWarning, "CIDRNotAvailable", "%v", err)
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": p.String(), "podCIDRs": []string{p.String()}},
	})
	if err != nil {
		return err
	}
	if err := env.Client.Patch(ctx, node.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		return client.IgnoreNotFound(err)
	}
	given[node.Name] = p.String()
	return nil
}
