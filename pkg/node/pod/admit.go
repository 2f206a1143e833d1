package pod

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/kind/nodeselector"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
)

const nodeOS = corev1.Linux

// admit checks once whether the node can run a new pod. If a critical pod only lacks room, it preempts others.
func (w *worker) admit() {
	m := w.m
	node := m.c.AdmitBy()
	w.mu.Lock()
	p := w.held.allocation.of(w.api.pod)
	w.mu.Unlock()
	if node == nil || isTerminal(p) || p.DeletionTimestamp != nil || p.Status.StartTime != nil ||
		len(m.containers.of(p.UID)) > 0 {
		return
	}
	v := w.refuse(p, node)
	if v != nil && eviction.Critical(w.trusted(p)) {
		if victims := Victims(p, node, w.others()); len(victims) > 0 {
			w.preempt(victims)
			return
		}
	}
	if v != nil {
		w.mu.Lock()
		w.end.verdict = v
		w.mu.Unlock()
		m.event(p, "", corev1.EventTypeWarning, v.Reason, v.Message)
	}
}

// refuseUnchecked rejects a pod whose admission panicked, with the kubelet's reason.
func (w *worker) refuseUnchecked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end.verdict == nil {
		w.end.verdict = &Verdict{
			Reason:  "UnexpectedAdmissionError",
			Message: "Pod was rejected: internal error of the node agent; see the agent's log",
		}
	}
}

// rejectFor rejects a pod after its admission, so that its controller can create it again elsewhere.
func (w *worker) rejectFor(reason, message string) {
	w.mu.Lock()
	p, ended := w.api.pod, w.api.gone || w.end.verdict != nil
	if !ended {
		w.end.verdict = &Verdict{Reason: reason, Message: "Pod was rejected: " + message}
	}
	w.mu.Unlock()
	if !ended {
		w.m.event(p, "", corev1.EventTypeWarning, reason, message)
	}
}

// refuse returns why the pod must not start on this node, or nil. It checks in the kubelet's order.
func (w *worker) refuse(p *corev1.Pod, node *corev1.Node) *Verdict {
	m := w.m
	if m.shuttingDown() {
		return &Verdict{Reason: refusedReason, Message: refusedMessage}
	}
	if m.c.Pressures != nil {
		if message := eviction.Refuse(w.trusted(p), m.c.Pressures()); message != "" {
			return &Verdict{Reason: eviction.Reason, Message: message}
		}
	}
	if v := m.c.Sysctls.refuse(p); v != nil {
		return v
	}
	if v := Admit(p, node, w.others()); v != nil {
		return v
	}
	if missing := missingFeatures(p); len(missing) > 0 {
		return &Verdict{
			Reason:  "PodFeatureUnsupported",
			Message: "Pod requires node features that are not available: " + strings.Join(missing, ", "),
		}
	}
	return m.modules.refuseAppArmor(p)
}

func (w *worker) others() []*corev1.Pod {
	var others []*corev1.Pod
	for _, o := range w.m.all() {
		if o == w {
			continue
		}
		if p := o.counted(); p != nil {
			others = append(others, p)
		}
	}
	return others
}

// counted returns the pod with its allocated resources, or nil if it no longer uses any.
func (w *worker) counted() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.api.pod
	if w.ended() || w.end.verdict != nil || w.api.gone && p.Spec.NodeName == "" {
		return nil
	}
	return w.trusted(w.held.allocation.of(p)) // not view, which is costly: each new pod asks for all others
}

// Admit returns why a node cannot run a pod beside the others, or nil. It is a pure function.
func Admit(p *corev1.Pod, node *corev1.Node, others []*corev1.Pod) *Verdict {
	if os, has := p.Labels[corev1.LabelOSStable]; has && os != string(nodeOS) {
		return &Verdict{
			Reason:  "PodOSSelectorNodeLabelDoesNotMatch",
			Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		}
	}
	if p.Spec.OS != nil && p.Spec.OS.Name != nodeOS {
		return &Verdict{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if !nodeselector.RequiredOf(p.Spec.NodeSelector, p.Spec.Affinity).Match(node) {
		return &Verdict{
			Reason:  "NodeAffinity",
			Message: "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
		}
	}
	taken := map[string]bool{}
	used := corev1.ResourceList{}
	for _, o := range others {
		for k := range hostPorts(o) {
			taken[k] = true
		}
		for name, q := range nodeRequests(o) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	for k := range hostPorts(p) {
		if taken[k] {
			return &Verdict{
				Reason:  "NodePorts",
				Message: "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
			}
		}
	}
	room := node.Status.Allocatable
	if q, ok := room[corev1.ResourcePods]; ok && int64(len(others))+1 > q.Value() {
		return &Verdict{
			Reason: "OutOfpods",
			Message: fmt.Sprintf("Pod was rejected: Node didn't have enough resource: pods, requested: 1, "+
				"used: %d, capacity: %d", len(others), q.Value()),
		}
	}
	requests := nodeRequests(p)
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		// Extended resources count. If the node has none of a kind, only the scheduler rejects the pod.
		if strings.Contains(string(name), "/") {
			names = append(names, name)
		}
	}
	for _, name := range names {
		want, have := requests[name], used[name]
		limit, known := room[name]
		if want.IsZero() || !known {
			continue
		}
		sum := have.DeepCopy()
		sum.Add(want)
		if sum.Cmp(limit) > 0 {
			return &Verdict{Reason: "OutOf" + string(name), Message: "Pod was rejected: " + shortOf(name, want, have, limit)}
		}
	}
	return nil
}

func shortOf(name corev1.ResourceName, want, used, room resource.Quantity) string {
	return fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name,
		amount(name, want), amount(name, used), amount(name, room))
}

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func hostPorts(p *corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				ip := port.HostIP
				if ip == "0.0.0.0" {
					ip = ""
				}
				out[fmt.Sprintf("%s/%s/%d", port.Protocol, ip, port.HostPort)] = true
			}
		}
	}
	return out
}
