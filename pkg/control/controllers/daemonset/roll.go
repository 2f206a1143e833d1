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

// surge returns maxSurge for the number of nodes. It is 0 if the value is invalid, which validation rejects.
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

// fences resolves maxSurge and maxUnavailable. If both are zero, maxUnavailable becomes 1, so that an update
// progresses.
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

// updated returns the new and the old pod of a node, ignoring pods that are being deleted. ok is false if there
// are two new or two old pods.
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

// roll takes one step of a rolling update. manage must have nothing to create or delete.
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

// replace deletes unavailable old pods, and as many other old pods as maxUnavailable allows. A later step creates
// their replacements.
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
			unavailable++ // manage must act first
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

// surgeOn creates new pods beside old ones: on nodes whose old pod is unavailable, and on as many others as
// maxSurge allows. It deletes an old pod once the new one is available.
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
		case !n.here: // podgc deletes the pod
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
	// A pod may stay on a node that is not eligible any more. It is deleted once enough other pods are available.
	p.a.Delete = append(p.a.Delete, misplaced[:min(max(available-desired, 0), len(misplaced))]...)
	p.a.Run = append(p.a.Run, candidates[:min(max(most-surging, 0), len(candidates))]...)
}
