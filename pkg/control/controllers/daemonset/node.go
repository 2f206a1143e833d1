package daemonset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/coracle-dev/coracle/pkg/kind/nodeselector"
)

// tolerations are added to every daemon pod: nodes that are not ready, unreachable, under pressure or cordoned
// still need their daemons.
var tolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

var hostNetworkToleration = corev1.Toleration{
	Key:      corev1.TaintNodeNetworkUnavailable,
	Operator: corev1.TolerationOpExists,
	Effect:   corev1.TaintEffectNoSchedule,
}

// tolerated returns the template's tolerations plus the default ones. A default toleration replaces a template
// toleration that differs only in its seconds.
func tolerated(spec *corev1.PodSpec) []corev1.Toleration {
	out := slices.Clone(spec.Tolerations)
	add := func(t corev1.Toleration) {
		i := slices.IndexFunc(out, func(o corev1.Toleration) bool { return o.MatchToleration(&t) })
		if i < 0 {
			out = append(out, t)
		} else {
			out[i] = t
		}
	}
	for _, t := range tolerations {
		add(t)
	}
	if spec.HostNetwork {
		add(hostNetworkToleration)
	}
	return out
}

type eligibility struct {
	name        string // the only eligible node, or ""
	tolerations []corev1.Toleration
	required    nodeselector.Required
}

func newEligibility(set *appsv1.DaemonSet) eligibility {
	spec := &set.Spec.Template.Spec
	return eligibility{spec.NodeName, tolerated(spec), nodeselector.RequiredOf(spec.NodeSelector, spec.Affinity)}
}

// of reports whether the node should run a pod, and whether an existing pod may stay. A pod may stay if it
// tolerates the node's NoExecute taints.
func (e eligibility) of(n *corev1.Node) (run, stay bool) {
	if e.name != "" && e.name != n.Name {
		return false, false
	}
	if !e.required.Match(n) {
		return false, false
	}
	run, stay = true, true
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule ||
			slices.ContainsFunc(e.tolerations, func(o corev1.Toleration) bool {
				return o.ToleratesTaint(klog.Logger{}, t, true)
			}) {
			continue
		}
		run = false
		if t.Effect == corev1.TaintEffectNoExecute {
			stay = false
		}
	}
	return run, stay
}

// onto returns a copy of the affinity that requires the named node. The name replaces the required node affinity,
// which the node satisfies.
func onto(a *corev1.Affinity, node string) *corev1.Affinity {
	out := a.DeepCopy()
	if out == nil {
		out = &corev1.Affinity{}
	}
	if out.NodeAffinity == nil {
		out.NodeAffinity = &corev1.NodeAffinity{}
	}
	out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
			},
		}},
	}
	return out
}

// target returns the node that a pod is bound to or that its affinity names, "" if there is neither.
func target(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}
