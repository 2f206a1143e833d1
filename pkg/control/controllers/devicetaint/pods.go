// Package devicetaint evicts pods from devices with NoExecute taints that their claims do not tolerate (KEP-5055).
// Drivers set taints in ResourceSlices, administrators in DeviceTaintRules. A rule's status reports the progress. Its
// invariant: it deletes a pod only for a device that is allocated to a claim that is reserved for exactly this pod.
package devicetaint

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

const account = "device-taint-eviction-controller"

// poolIndex finds claims and slices by pool.
const poolIndex = "pool"

func poolKey(driver, pool string) string { return driver + "/" + pool }

func indexes() []engine.Index {
	return []engine.Index{
		{Object: &resourcev1.ResourceClaim{}, Name: poolIndex, Values: func(o client.Object) (out []string) {
			if c, ok := o.(*resourcev1.ResourceClaim); ok && c.Status.Allocation != nil {
				for _, d := range c.Status.Allocation.Devices.Results {
					if key := poolKey(d.Driver, d.Pool); !slices.Contains(out, key) {
						out = append(out, key)
					}
				}
			}
			return out
		}},
		{Object: &resourcev1.ResourceSlice{}, Name: poolIndex, Values: func(o client.Object) []string {
			s, ok := o.(*resourcev1.ResourceSlice)
			if !ok {
				return nil
			}
			return []string{poolKey(s.Spec.Driver, s.Spec.Pool.Name)}
		}},
	}
}

// New declares the reconciler that evicts pods.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "device-taint-eviction", Account: account, Workers: 2, When: &resourcev1.ResourceClaim{},
		Watches: []engine.Watch{
			{Object: &corev1.Pod{}, Event: ofPod},
			{Object: &resourcev1.ResourceClaim{}, Event: ofClaim},
			{Object: &resourcev1.ResourceSlice{}, Event: ofSlice},
			{Object: &resourcev1.DeviceTaintRule{}, Event: ofRule},
		},
		Writes:  []engine.Write{{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Delete, engine.Status}}},
		Indexes: indexes(),
		New:     func(env engine.Env) engine.Func { return engine.Each(env, (&pods{env}).reconcile) },
	}
}

// ofPod maps a pod with claims to itself when it is bound or its claims change.
func ofPod(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	p, ok := is.(*corev1.Pod)
	if !ok || len(p.Spec.ResourceClaims) == 0 || p.Spec.NodeName == "" {
		return nil
	}
	if before, ok := was.(*corev1.Pod); ok && before.Spec.NodeName == p.Spec.NodeName &&
		resourceclaim.PodStatusEqual(before.Status.ResourceClaimStatuses, p.Status.ResourceClaimStatuses) {
		return nil
	}
	return []engine.Request{engine.RequestFor(p.Namespace, p.Name)}
}

// ofClaim maps a claim to the pods that it is reserved for.
func ofClaim(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	c, ok := is.(*resourcev1.ResourceClaim)
	if before, known := was.(*resourcev1.ResourceClaim); !ok ||
		known && equality.Semantic.DeepEqual(before.Status, c.Status) {
		return nil
	}
	return users(c)
}

func users(c *resourcev1.ResourceClaim) (out []engine.Request) {
	for _, ref := range c.Status.ReservedFor {
		if ref.APIGroup == "" && ref.Resource == "pods" {
			out = append(out, engine.RequestFor(c.Namespace, ref.Name))
		}
	}
	return out
}

// ofSlice maps a slice that has or had NoExecute taints to the pods that use its pool.
func ofSlice(ctx context.Context, env engine.Env, was, is client.Object) (out []engine.Request) {
	before, _ := was.(*resourcev1.ResourceSlice)
	s, ok := is.(*resourcev1.ResourceSlice)
	if !ok || !tainted(s) && (before == nil || !tainted(before)) {
		return nil
	}
	var claims resourcev1.ResourceClaimList
	if err := env.ByIndex(ctx, &claims, "", poolIndex, poolKey(s.Spec.Driver, s.Spec.Pool.Name)); err != nil {
		env.Log.Warn("could not list the claims of a pool", "pool", s.Spec.Pool.Name, "error", err)
		return nil
	}
	for i := range claims.Items {
		out = append(out, users(&claims.Items[i])...)
	}
	return out
}

func tainted(s *resourcev1.ResourceSlice) bool {
	return slices.ContainsFunc(s.Spec.Devices, func(d resourcev1.Device) bool {
		return slices.ContainsFunc(d.Taints, func(t resourcev1.DeviceTaint) bool {
			return t.Effect == resourcev1.DeviceTaintEffectNoExecute
		})
	})
}

// ofRule maps a rule with effect NoExecute to the pods that use its devices.
func ofRule(ctx context.Context, env engine.Env, was, is client.Object) (out []engine.Request) {
	r, ok := is.(*resourcev1.DeviceTaintRule)
	if before, known := was.(*resourcev1.DeviceTaintRule); !ok || known && before.Generation == r.Generation {
		return nil
	}
	if r.Spec.Taint.Effect != resourcev1.DeviceTaintEffectNoExecute {
		return nil
	}
	var claims resourcev1.ResourceClaimList
	if err := env.Cache.List(ctx, &claims); err != nil {
		env.Log.Warn("could not list claims", "error", err)
		return nil
	}
	for i := range claims.Items {
		if uses(&claims.Items[i], r) > 0 {
			out = append(out, users(&claims.Items[i])...)
		}
	}
	return out
}

func uses(c *resourcev1.ResourceClaim, r *resourcev1.DeviceTaintRule) (n int) {
	if c.Status.Allocation == nil {
		return 0
	}
	for _, d := range c.Status.Allocation.Devices.Results {
		if Selects(r, d.Driver, d.Pool, d.Device) {
			n++
		}
	}
	return n
}

type pods struct{ engine.Env }

func (r *pods) reconcile(ctx context.Context, p *corev1.Pod) (engine.Result, error) {
	in, err := inventory(ctx, r.Env)
	if err != nil {
		return engine.Result{}, err
	}
	claims, err := claimsOf(ctx, r.Env, p)
	if err != nil {
		return engine.Result{}, err
	}
	now := r.Now()
	e := Plan(p, claims, in, now)
	if e == nil {
		return engine.Result{}, nil
	}
	if wait := e.At.Sub(now); wait > 0 {
		return engine.Result{RequeueAfter: wait}, nil
	}
	return engine.Result{}, podstate.Evict(ctx, r.Env, p, "DeletionByDeviceTaintManager",
		"Device Taint manager: deleting due to NoExecute taint", func() {
			r.Events.Event(p, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
		})
}

// inventory reads the rules. Slices are read on demand.
func inventory(ctx context.Context, env engine.Env) (Inventory, error) {
	var rules resourcev1.DeviceTaintRuleList
	if err := env.Cache.List(ctx, &rules); err != nil {
		return Inventory{}, err
	}
	in := Inventory{Slices: func(driver, pool string) (out []*resourcev1.ResourceSlice) {
		var list resourcev1.ResourceSliceList
		if err := env.ByIndex(ctx, &list, "", poolIndex, poolKey(driver, pool)); err != nil {
			env.Log.Warn("could not list the slices of a pool", "pool", pool, "error", err)
		}
		return engine.Pointers(list.Items)
	}}
	in.Rules = engine.Pointers(rules.Items)
	return in, nil
}

// claimsOf returns the existing claims that a pod names. It omits generated claims that belong to another pod.
func claimsOf(ctx context.Context, env engine.Env, p *corev1.Pod) (out []*resourcev1.ResourceClaim, err error) {
	for name, owned := range resourceclaim.PodClaims(p) {
		var c resourcev1.ResourceClaim
		err := env.Cache.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: name}, &c)
		switch {
		case apierrors.IsNotFound(err), err == nil && owned && resourceclaim.IsForPod(p, &c, false) != nil:
		case err != nil:
			return nil, err
		default:
			out = append(out, &c)
		}
	}
	return out, nil
}
