package agent

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// setRange records a node's pod range. It returns why the range is refused, or "".
func (a *Agent) setRange(n *corev1.Node) string {
	r := route{created: n.CreationTimestamp.Unix()}
	for _, s := range n.Status.Addresses {
		if s.Type == corev1.NodeInternalIP && !r.via.IsValid() {
			r.via, _ = netip.ParseAddr(s.Address)
		}
	}
	if n.Name == a.c.NodeName {
		r.via = a.c.NodeIP
	}
	for _, s := range append(slices.Clone(n.Spec.PodCIDRs), n.Spec.PodCIDR) {
		if p, err := netip.ParsePrefix(s); err == nil && p.Addr().Is4() {
			r.cidr = p
			break
		}
	}
	a.mu.Lock()
	own := a.syncRoutes(n.Name, &r)
	why := a.refused[n.Name]
	a.mu.Unlock()
	if n.Name != a.c.NodeName {
		a.retryRange(own)
	}
	return why
}

// syncRoutes sets the routes to the pods of other nodes. own reports whether this node's range has ceased to be
// refused. Called with the lock held.
func (a *Agent) syncRoutes(name string, r *route) (own bool) {
	old, had := a.ranges[name]
	if r == nil || !r.via.IsValid() || !r.cidr.IsValid() {
		if !had {
			return false
		}
		delete(a.ranges, name)
	} else {
		if had && old == *r {
			return false
		}
		a.ranges[name] = *r
	}
	accepted, refused := limits{a.c.ClusterCIDR, a.c.ServiceCIDR}.routes(a.ranges, a.c.NodeName)
	for node, why := range refused {
		if a.refused[node] != why {
			a.log.Warn("refused podCIDR of node, its pods are unreachable from here", "refused", node, "reason", why)
		}
	}
	_, was := a.refused[a.c.NodeName]
	_, is := refused[a.c.NodeName]
	a.refused = refused
	all := map[netip.Prefix]netip.Addr{}
	for node, r := range accepted {
		if node != a.c.NodeName {
			all[r.cidr] = r.via
		}
	}
	if err := a.c.Network.Routes(context.Background(), all); err != nil {
		a.log.Error("could not set routes to other nodes' pods", "error", err)
	}
	return was && !is
}

// retryRange applies this node's range if free, that is, no longer refused.
func (a *Agent) retryRange(free bool) {
	if !free {
		return
	}
	a.mu.Lock()
	n := a.node
	a.mu.Unlock()
	if n != nil {
		a.applyRange(context.Background(), n)
		a.wakeStatus()
	}
}
