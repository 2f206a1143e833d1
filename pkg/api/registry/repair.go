package registry

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// RepairAllocations creates missing reservations of Services, and deletes reservations that the allocator made for
// Services that do not use them. The registry itself causes neither. The causes are IPAddresses deleted by users,
// Services deleted or restored directly in etcd, and stores written by versions without reservations. Each repair
// is conditional on the Service being unchanged, so it may run concurrently with writes and on several servers.
func (r *Registry) RepairAllocations(ctx context.Context) error {
	if r.services == nil || r.addresses == nil {
		return nil
	}
	if _, err := r.sync(ctx); err != nil {
		return err
	}
	rep := &repair{Registry: r, ctx: ctx, ips: map[netip.Addr]*cache.Entry{}, ports: map[int32]*cache.Entry{}}
	if err := rep.collect(); err != nil {
		return err
	}
	if err := rep.clusterIPs(); err != nil {
		return err
	}
	return rep.nodePorts()
}

// repair is one pass. ips and ports map each allocation to the Service that uses it.
type repair struct {
	*Registry
	ctx   context.Context
	ips   map[netip.Addr]*cache.Entry
	ports map[int32]*cache.Entry
}

func (p *repair) collect() error {
	services, _ := p.cache.List(p.services, cache.Query{})
	for _, e := range services {
		s, ok := e.Object.(*corev1.Service)
		if !ok {
			continue
		}
		ips, ports := p.allocationsOf(s)
		for _, ip := range ips {
			if other := p.ips[ip]; other != nil {
				p.cfg.Logger.Warn("cluster IP is used by two services: delete one of them and create it again", "ip", ip, "service",
					e.Key, "other", other.Key)
				continue
			}
			p.ips[ip] = e
		}
		for _, port := range ports {
			if other := p.ports[port]; other != nil {
				p.cfg.Logger.Warn("node port is used by two services: change one of them", "port", port, "service", e.Key, "other",
					other.Key)
				continue
			}
			p.ports[port] = e
		}
	}
	return p.ctx.Err()
}

// present reports whether the current Service, which may be newer than the collected one, satisfies uses, and returns
// the condition that it is unchanged.
func (p *repair) present(h holder, uses func([]netip.Addr, []int32) bool) (check store.Op, used bool) {
	check = store.Op{Action: store.Check, Key: p.services.Key(h.Namespace, h.Name)}
	if e := p.cache.Get(p.services, h.Namespace, h.Name); e != nil {
		check.Revision = e.Revision
		s, ok := e.Object.(*corev1.Service)
		used = ok && uses(p.allocationsOf(s))
	}
	return check, used
}

// unchanged is the condition that a Service is the collected one.
func unchanged(e *cache.Entry) store.Op {
	return store.Op{Action: store.Check, Key: e.Key, Revision: e.Revision}
}

// apply makes one repair. If it conflicts with a write, the next pass repeats it if it is still needed.
func (p *repair) apply(what, name string, h holder, ops ...store.Op) error {
	_, _, err := p.store.Txn(p.ctx, ops...)
	switch {
	case err == nil:
		p.cfg.Logger.Info("repaired service allocation", "repair", what, "name", name, "service", h.Namespace+"/"+h.Name)
		return nil
	case lostRace(err):
		return nil
	}
	return status(err, corev1.Resource("services"), h.Name)
}

func (p *repair) clusterIPs() error {
	reserved, _ := p.cache.List(p.addresses, cache.Query{})
	has, wrong := make(map[netip.Addr]bool, len(reserved)), map[netip.Addr]*cache.Entry{}
	for _, e := range reserved {
		a, ok := e.Object.(*networkingv1.IPAddress)
		if !ok {
			continue
		}
		ip, err := netip.ParseAddr(a.Name)
		if err != nil {
			continue
		}
		s, parent := p.ips[ip], parentOf(a)
		uses := func(ips []netip.Addr, _ []int32) bool { return slices.Contains(ips, ip) }
		switch check, used := p.present(parent, uses); {
		case s != nil && (used || parent == nameOf(s)): // if several Services use it, the current parent keeps it
			has[ip] = true
		case s != nil: // as upstream, correct a wrong parent: deleting it could free the address
			wrong[ip] = e
		// The allocator did not create any other IPAddress.
		case parent != holder{} && a.Labels[networkingv1.LabelManagedBy] == managedBy && !used:
			remove := store.Op{Action: store.Remove, Key: e.Key, Revision: e.Revision}
			if err := p.apply("release cluster IP", a.Name, parent, remove, check); err != nil {
				return err
			}
		}
	}
	for ip, e := range p.ips {
		if has[ip] {
			continue
		}
		s := e.Object.(*corev1.Service)
		ops, err := p.addressOp(ip, s, wrong[ip])
		if err != nil {
			return err
		}
		h := nameOf(e)
		if err := p.apply("reserve cluster IP", ip.String(), h, append(ops, unchanged(e))...); err != nil {
			return err
		}
	}
	return nil
}

func (p *repair) nodePorts() error {
	kvs, _, _, err := p.store.Range(p.ctx, portPrefix, "", 0, 0)
	if err != nil {
		return status(err, corev1.Resource("services"), "")
	}
	has := make(map[int32]bool, len(kvs))
	for _, kv := range kvs {
		port, ok := portOf(kv.Key)
		if !ok {
			continue
		}
		h := holderOf(kv)
		if s := p.ports[port]; s != nil && h == nameOf(s) {
			has[port] = true
			continue
		}
		remove := store.Op{Action: store.Remove, Key: kv.Key, Revision: kv.Revision}
		check, uses := p.present(h, func(_ []netip.Addr, ports []int32) bool { return slices.Contains(ports, port) })
		if uses {
			continue
		}
		if err := p.apply("release node port", kv.Key[len(portPrefix):], h, remove, check); err != nil {
			return err
		}
	}
	for port, e := range p.ports {
		if has[port] {
			continue
		}
		h := nameOf(e)
		op := portOp(port, e.Object.(*corev1.Service))
		if err := p.apply("reserve node port", op.Key[len(portPrefix):], h, op, unchanged(e)); err != nil {
			return err
		}
	}
	return nil
}

func nameOf(e *cache.Entry) holder {
	return holder{e.Object.GetNamespace(), e.Object.GetName()}
}
