package statefulset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxUnavailable returns the update strategy's maxUnavailable. The minimum and the default are 1.
func (p *plan) maxUnavailable() (int64, error) {
	r := p.set.Spec.UpdateStrategy.RollingUpdate
	if r == nil || r.MaxUnavailable == nil {
		return 1, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, int(p.replicas()), false)
	return int64(max(n, 1)), err
}

// roll takes one step of a rolling update. It deletes outdated pods at or above the partition, highest ordinal
// first, within maxUnavailable. A later step recreates them.
func (p *plan) roll() error {
	most, err := p.maxUnavailable()
	if err != nil {
		return err
	}
	unavailable := p.replicas() - int64(len(p.ordered)) // missing pods
	for _, pod := range p.ordered {
		if !p.available(pod) {
			unavailable++
		}
	}
	old := func(pod *corev1.Pod) bool {
		return Ordinal(p.set, pod.Name) >= p.partition() && revision(pod) != p.update && pod.DeletionTimestamp == nil &&
			!slices.Contains(p.a.Delete, pod)
	}
	if !p.inOrder() {
		// Delete unavailable pods first, regardless of the other pods: a broken revision must not block the update
		// that fixes it.
		for _, pod := range p.ordered {
			if old(pod) && !p.available(pod) {
				p.delete(pod)
			}
		}
	}
	for _, pod := range p.ordered {
		if unavailable >= most {
			break
		}
		if old(pod) && p.available(pod) {
			p.delete(pod)
			unavailable++
		}
	}
	return nil
}
