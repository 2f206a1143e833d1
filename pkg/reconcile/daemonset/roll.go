package daemonset

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func (p *plan) rolling() *appsv1.RollingUpdateDaemonSet {
	if p.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return nil
	}
	return p.set.Spec.UpdateStrategy.RollingUpdate
}

// surge is maxSurge of that many nodes; what does not parse, which validation refuses, is none.
func (p *plan) surge(nodes int) int {
	r := p.rolling()
	if r == nil || r.MaxSurge == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxSurge, nodes, true)
	if err != nil {
		return 0
	}
	return n
}

// fences resolves maxSurge and maxUnavailable; both zero would never move.
func (p *plan) fences(nodes int) (surge, unavailable int, err error) {
	surge = p.surge(nodes)
	if r := p.rolling(); r != nil && r.MaxUnavailable != nil {
		if unavailable, err = intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, nodes, true); err != nil {
			return 0, 0, err
		}
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable, nil
}

// updated is the new and the old pod of a node that are not being deleted; ok is false if there is more than one of either.
func (p *plan) updated(n *node) (fresh, old *corev1.Pod, ok bool) {
	for _, pod := range n.pods {
		slot := &old
		if p.current(pod) {
			slot = &fresh
		}
		switch {
		case pod.DeletionTimestamp != nil:
		case *slot != nil:
			return nil, nil, false
		default:
			*slot = pod
		}
	}
	return fresh, old, true
}

// roll takes one step of a rolling update, when each node has what it should have.
func (p *plan) roll() error {
	desired := 0
	for _, n := range p.nodes {
		if n.run {
			desired++
		}
	}
	surge, unavailable, err := p.fences(desired)
	if err != nil {
		return err
	}
	if surge == 0 {
		p.replace(unavailable)
	} else {
		p.surgeOn(surge, desired)
	}
	return nil
}

// replace deletes old pods: those that are not available, and as many others as may be unavailable. Their nodes get new ones after.
func (p *plan) replace(most int) {
	unavailable := 0
	var candidates []*corev1.Pod
	for _, name := range p.order {
		n := p.nodes[name]
		if !n.run && len(n.pods) == 0 {
			continue
		}
		fresh, old, ok := p.updated(n)
		switch {
		case !ok, (old == nil) == (fresh == nil):
			unavailable++ // it is managed first
		case fresh != nil:
			if !p.available(fresh) {
				unavailable++
			}
		case !p.available(old):
			p.a.Delete = append(p.a.Delete, old)
			unavailable++
		default:
			candidates = append(candidates, old)
		}
	}
	p.a.Delete = append(p.a.Delete, candidates[:min(max(most-unavailable, 0), len(candidates))]...)
}

// surgeOn creates new pods beside old ones: wherever the old one is not available, and on as many other nodes as the surge allows. The
// old pod goes once the new one is available.
func (p *plan) surgeOn(most, desired int) {
	surging, available := 0, 0
	var candidates []string
	var misplaced []*corev1.Pod
	for _, name := range p.order {
		n := p.nodes[name]
		if !n.run && len(n.pods) == 0 {
			continue
		}
		fresh, old, ok := p.updated(n)
		if !ok {
			surging++
			continue
		}
		if counts := old; counts != nil && p.available(counts) || counts == nil && fresh != nil && p.available(fresh) {
			available++
		}
		switch {
		case old == nil:
		case fresh != nil && !p.available(fresh):
			surging++
		case fresh != nil:
			p.a.Delete = append(p.a.Delete, old)
		case !n.here: // the pod collector takes the pod
		case !n.run && p.available(old):
			misplaced = append(misplaced, old)
		case !n.run:
			p.a.Delete = append(p.a.Delete, old)
		case !p.available(old):
			p.a.Run = append(p.a.Run, name)
		default:
			candidates = append(candidates, name)
		}
	}
	// A pod that may stay, but would not be placed where it is, goes once another one is available in its stead.
	p.a.Delete = append(p.a.Delete, misplaced[:min(max(available-desired, 0), len(misplaced))]...)
	p.a.Run = append(p.a.Run, candidates[:min(max(most-surging, 0), len(candidates))]...)
}
