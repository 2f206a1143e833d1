package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Stranded returns at most limit pods that this scheduler does not place: pods that name another scheduler and have no
// node yet, and pods that name a node that does not exist. The oldest come first; all is their total number.
func (s *Scheduler) Stranded(limit int) (pods []Pending, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.state.foreign {
		if len(p.Spec.SchedulingGates) == 0 {
			pods = append(pods, stranded(p, foreignReason(p)))
		}
	}
	for _, n := range s.state.nodes {
		if n.node != nil {
			continue
		}
		for _, i := range n.pods {
			if p := i.pod; p.DeletionTimestamp == nil {
				pods = append(pods, stranded(p, fmt.Sprintf("it names node %s, which does not exist", n.name)))
			}
		}
	}
	slices.SortFunc(pods, func(a, b Pending) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	all = len(pods)
	return pods[:min(limit, all)], all
}

func stranded(p *corev1.Pod, reason string) Pending {
	return Pending{Namespace: p.Namespace, Name: p.Name, Since: p.CreationTimestamp.Time, Reason: reason}
}

// foreignReason returns what the pod's own scheduler reported, or that it reported nothing.
func foreignReason(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Message != "" {
			return fmt.Sprintf("its scheduler %s: %s", p.Spec.SchedulerName, c.Message)
		}
	}
	return fmt.Sprintf("it waits for scheduler %s, which is not Coracle's", p.Spec.SchedulerName)
}
