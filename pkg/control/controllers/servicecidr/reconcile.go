// Package servicecidr protects ServiceCIDRs (KEP-1880) from deletion while a service has an address in no other range,
// and sets their Ready condition. Its invariant: a range keeps its finalizer while an allocated address is in no other
// range that is not being deleted.
package servicecidr

import (
	"context"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// allocator is upstream's label value of addresses that servers allocate. Addresses that users create do not
// protect a range.
const allocator = "ipallocator.k8s.io"

// New declares the reconciler. Its requests are ranges.
func New() *engine.Reconciler {
	ranges, address := &networkingv1.ServiceCIDR{}, &networkingv1.IPAddress{}
	return &engine.Reconciler{
		Name: "service-cidrs", Workers: 1,
		Watches: []engine.Watch{
			{Object: ranges, Event: related},
			{Object: address, Event: released},
		},
		Writes: []engine.Write{{Object: ranges, Parts: []engine.Part{engine.Finalizers, engine.Status}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env}).reconcile)
		},
	}
}

// related maps a range to itself. A created or deleted range also maps to all ranges that are being deleted.
func related(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	var out []engine.Request
	if is != nil {
		out = append(out, engine.RequestFor("", is.GetName()))
	}
	if was == nil || is == nil || is.GetDeletionTimestamp() != nil {
		out = append(out, going(ctx, env, func(*networkingv1.ServiceCIDR) bool { return true })...)
	}
	return out
}

// released maps a deleted address to the terminating ranges that contain it.
func released(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if is != nil {
		return nil
	}
	ip, err := netip.ParseAddr(was.GetName())
	if err != nil {
		return nil
	}
	return going(ctx, env, func(s *networkingv1.ServiceCIDR) bool {
		return slices.ContainsFunc(prefixes(s), func(p netip.Prefix) bool { return p.Contains(ip) })
	})
}

// going returns the ranges that are being deleted and for which f returns true.
func going(ctx context.Context, env engine.Env, f func(*networkingv1.ServiceCIDR) bool) []engine.Request {
	var all networkingv1.ServiceCIDRList
	if err := env.Cache.List(ctx, &all); err != nil {
		return nil
	}
	return engine.Requests(all.Items, func(s *networkingv1.ServiceCIDR) bool {
		return s.DeletionTimestamp != nil && f(s)
	})
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, s *networkingv1.ServiceCIDR) (engine.Result, error) {
	var all []*networkingv1.ServiceCIDR
	var allocated []netip.Addr
	if s.DeletionTimestamp != nil {
		var ranges networkingv1.ServiceCIDRList
		var addresses networkingv1.IPAddressList
		if err := r.Cache.List(ctx, &ranges); err != nil {
			return engine.Result{}, err
		}
		if err := r.Cache.List(ctx, &addresses, client.MatchingLabels{networkingv1.LabelManagedBy: allocator}); err != nil {
			return engine.Result{}, err
		}
		all = engine.Pointers(ranges.Items)
		for i := range addresses.Items {
			if ip, err := netip.ParseAddr(addresses.Items[i].Name); err == nil {
				allocated = append(allocated, ip)
			}
		}
	}
	d := Plan(s, all, allocated, r.Now())
	result := engine.Result{RequeueAfter: d.Again}
	switch {
	case d.Object != nil:
		return result, r.Client.Update(ctx, d.Object)
	case d.Status != nil:
		return result, r.Client.Status().Update(ctx, d.Status)
	}
	return result, nil
}
