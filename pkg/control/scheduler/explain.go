package scheduler

import (
	"fmt"
	"slices"
	"strings"
)

// message returns why the pod is pending, in upstream's form: "0/3 nodes are available: 1 Insufficient cpu, 2 ...".
func (f *failure) message(preemption string) string {
	nodes := f.cycle.state.order
	if len(nodes) == 0 {
		return "no nodes available to schedule pods"
	}
	if v := f.cycle.volumes; v != nil && v.wrong != "" { // independent of nodes: count none, as upstream
		return fmt.Sprintf("0/%d nodes are available: %s.", len(nodes), v.wrong) + preemption
	}
	if d := f.cycle.devices; d != nil && d.wrong != "" {
		return fmt.Sprintf("0/%d nodes are available: %s.", len(nodes), d.wrong) + preemption
	}
	count := map[string]int{}
	for i, n := range nodes {
		for _, r := range f.active[f.refused[i]].refuse(f.cycle, n) {
			count[r]++
		}
	}
	return fmt.Sprintf("0/%d nodes are available: %s.", len(nodes), histogram(count)) + preemption
}

func histogram(count map[string]int) string {
	parts := make([]string, 0, len(count))
	for r, n := range count {
		parts = append(parts, fmt.Sprintf("%d %s", n, r))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// wide reports whether a filter that rejected a node depends on other nodes.
func (f *failure) wide() bool {
	for _, by := range f.refused {
		if f.active[by].wide {
			return true
		}
	}
	return false
}
