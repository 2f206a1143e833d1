package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// mostDetail is the maximum length of a detail in bytes. A longer one is cut: a pod may have thousands of labels.
const mostDetail = 200

// detailed adds to a filter's messages what this pod wants and what this node has. Upstream's messages, which programs
// count, have neither, so only explanations are detailed.
func (c *cycle) detailed(filter string, n *nodeInfo, messages []string) []string {
	var detail string
	switch filter {
	case "TaintToleration":
		if t := untolerated(c.pod, n); t != nil {
			detail = t.ToString()
		}
	case nodeAffinity:
		detail = c.missingLabels(n)
	case volumeBinding:
		var names []string
		for _, claim := range c.claims {
			names = append(names, claim.Name)
		}
		detail = "its claims: " + strings.Join(names, ", ")
	case "NodePorts":
		detail = c.takenPort(n)
	case "NodeResourcesFit":
		detail = c.amounts(n)
	case "PodTopologySpread":
		detail = c.crowdedBy(n)
	case "InterPodAffinity":
		detail = c.unmetTerms()
	}
	if detail == "" {
		return messages
	}
	if len(detail) > mostDetail {
		detail = strings.ToValidUTF8(detail[:mostDetail], "") + "..."
	}
	out := slices.Clone(messages)
	out[len(out)-1] += " (" + detail + ")"
	return out
}

// missingLabels compares the labels of the pod's nodeSelector, or shows its required affinity.
func (c *cycle) missingLabels(n *nodeInfo) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(c.pod.Spec.NodeSelector)) {
		want := c.pod.Spec.NodeSelector[k]
		if have, ok := n.node.Labels[k]; !ok {
			out = append(out, fmt.Sprintf("the node has no label %s=%s", k, want))
		} else if have != want {
			out = append(out, fmt.Sprintf("its label %s is %s, not %s", k, have, want))
		}
	}
	if len(out) > 0 {
		return strings.Join(out, ", ")
	}
	a := c.pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var all []string
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			all = append(all, strings.TrimSpace(fmt.Sprint(e.Key, " ", e.Operator, " ", strings.Join(e.Values, "|"))))
		}
		out = append(out, strings.Join(all, " and "))
	}
	return "it wants " + strings.Join(out, ", or ")
}

func (c *cycle) takenPort(n *nodeInfo) string {
	for _, p := range slices.SortedFunc(maps.Values(n.pods), byName) {
		for _, have := range p.ports {
			if slices.ContainsFunc(c.ports, have.clashes) {
				return fmt.Sprintf("pod %s/%s has port %d/%s", p.pod.Namespace, p.pod.Name, have.number, have.protocol)
			}
		}
	}
	return ""
}

func byName(a, b *podInfo) int {
	return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
}

// amounts compares requests with what the node has left after the pods that it has and those nominated to it.
func (c *cycle) amounts(n *nodeInfo) string {
	promised, pods := c.promised(n)
	var out []string
	add := func(name string, need, taken, most int64, show func(int64) string) {
		if need != 0 && need+taken > most {
			free := show(max(most-taken, 0))
			out = append(out, fmt.Sprintf("%s: wants %s, %s of %s is free", name, show(need), free, show(most)))
		}
	}
	add("pods", 1, int64(len(n.pods)+pods), int64(n.max), func(v int64) string { return fmt.Sprint(v) })
	add("cpu", c.need.cpu, promised.cpu+n.used.cpu, n.most.cpu, cores)
	add("memory", c.need.memory, promised.memory+n.used.memory, n.most.memory, binary)
	add("ephemeral-storage", c.need.ephemeral, promised.ephemeral+n.used.ephemeral, n.most.ephemeral, binary)
	for _, name := range slices.Sorted(maps.Keys(c.need.extended)) {
		if !c.byDevices(name, n) {
			add(string(name), c.need.extended[name], promised.extended[name]+n.used.extended[name], n.most.extended[name],
				func(v int64) string { return fmt.Sprint(v) })
		}
	}
	return strings.Join(out, ", ")
}

// cores shows processors as users write them: 1000, not 1k.
func cores(milli int64) string {
	if milli%1000 == 0 {
		return fmt.Sprint(milli / 1000)
	}
	return resource.NewMilliQuantity(milli, resource.DecimalSI).String()
}

// binary rounds bytes to a tenth of Gi or Mi.
func binary(v int64) string {
	const mi = 1 << 20
	if v >= 1<<10*mi {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(v)/(1<<10*mi)), ".0") + "Gi"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(v)/mi), ".0") + "Mi"
}

func (c *cycle) crowdedBy(n *nodeInfo) string {
	for i := range c.spread.hard {
		k := &c.spread.hard[i]
		v, ok := k.domains.of(n)
		if !ok {
			return "the node has no label " + k.TopologyKey
		}
		if k.pods[v]+k.self-k.fewest() > int(k.MaxSkew) {
			return fmt.Sprintf("%d such pods at the node's %s, %d where there are fewest, maxSkew %d",
				k.pods[v], k.TopologyKey, k.fewest(), k.MaxSkew)
		}
	}
	return ""
}

// unmetTerms names the pods that the pod wants to be near to, or away from.
func (c *cycle) unmetTerms() string {
	if c.affinity == nil {
		return ""
	}
	var out []string
	for _, t := range c.affinity.required {
		out = append(out, fmt.Sprintf("it wants a pod with %s at the same %s", t.selector, t.key))
	}
	for _, t := range c.affinity.requiredAnti {
		out = append(out, fmt.Sprintf("it wants no pod with %s at the same %s", t.selector, t.key))
	}
	return strings.Join(out, ", ")
}
