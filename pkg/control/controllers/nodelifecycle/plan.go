package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultPatience is how long a node may be without a heartbeat by default.
const DefaultPatience = 40 * time.Second

// Observed is the observed state.
type Observed struct {
	Node *corev1.Node
	// Heard is the time of the node's last heartbeat, by the local clock.
	Heard time.Time
	// Patience is how long the node may be without a heartbeat.
	Patience time.Duration
	// Eviction applies if the node is lost.
	Eviction Eviction
}

// lost reports whether the node sends no heartbeats or is not Ready.
func (o Observed) lost(now time.Time) bool {
	return !well(o.Node.Status.Conditions) || !o.Heard.Add(o.Patience).After(now)
}

// Actions is what to do.
type Actions struct {
	// Conditions are the desired conditions, nil if unchanged. Taints are valid if SetTaints.
	Conditions []corev1.NodeCondition
	Taints     []corev1.Taint
	SetTaints  bool
	// PodsNotReady: the node sends no heartbeats, so its pods must be marked as not ready.
	PodsNotReady bool
	// Again is the time until the node's grace period ends, 0 if it is already lost.
	Again time.Duration
}

// watched are the conditions that become Unknown when a node stops reporting.
var watched = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// Plan computes the actions. It does not change o.
func Plan(o Observed, now time.Time) Actions {
	var a Actions
	conditions := o.Node.Status.Conditions
	if left := o.Heard.Add(o.Patience).Sub(now); left > 0 {
		a.Again = left
	} else {
		conditions = silenced(o.Node, now)
		if !equality.Semantic.DeepEqual(conditions, o.Node.Status.Conditions) {
			a.Conditions = conditions
		}
	}
	ready := find(conditions, corev1.NodeReady)
	a.PodsNotReady = ready != nil && ready.Status == corev1.ConditionUnknown
	taints := taints(o, conditions, now)
	if !equality.Semantic.DeepEqual(taints, o.Node.Spec.Taints) {
		a.Taints, a.SetTaints = taints, true
	}
	return a
}

func find(cs []corev1.NodeCondition, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range cs {
		if cs[i].Type == t {
			return &cs[i]
		}
	}
	return nil
}

func silenced(n *corev1.Node, now time.Time) []corev1.NodeCondition {
	out := slices.Clone(n.Status.Conditions)
	at := metav1.NewTime(now)
	for _, t := range watched {
		c := find(out, t)
		if c == nil {
			out = append(out, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
				Message:           "Kubelet never posted node status.",
				LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: at,
			})
		} else if c.Status != corev1.ConditionUnknown {
			c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown",
				"Kubelet stopped posting node status.", at
		}
	}
	return out
}

// ours are the taints derived from conditions. Other taints are left alone.
var ours = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
}

// taints returns the node's desired taints: existing ones in their order, then new ones.
func taints(o Observed, conditions []corev1.NodeCondition, now time.Time) []corev1.Taint {
	n, leave := o.Node, []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}
	if o.Eviction == Spare || o.Eviction == Hold && !evicted(n) {
		leave = leave[:1]
	}
	var want []corev1.Taint
	add := func(key string, effects ...corev1.TaintEffect) {
		for _, e := range effects {
			want = append(want, corev1.Taint{Key: key, Effect: e})
		}
	}
	if c := find(conditions, corev1.NodeReady); c != nil {
		switch c.Status {
		case corev1.ConditionFalse:
			add(corev1.TaintNodeNotReady, leave...)
		case corev1.ConditionUnknown:
			add(corev1.TaintNodeUnreachable, leave...)
		}
	} else {
		add(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)
	}
	for _, x := range []struct {
		condition corev1.NodeConditionType
		taint     string
	}{
		{corev1.NodeMemoryPressure, corev1.TaintNodeMemoryPressure}, {corev1.NodeDiskPressure, corev1.TaintNodeDiskPressure},
		{corev1.NodePIDPressure, corev1.TaintNodePIDPressure},
		{corev1.NodeNetworkUnavailable, corev1.TaintNodeNetworkUnavailable},
	} {
		if c := find(conditions, x.condition); c != nil && c.Status == corev1.ConditionTrue {
			add(x.taint, corev1.TaintEffectNoSchedule)
		}
	}
	if n.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	}
	same := func(a corev1.Taint) func(corev1.Taint) bool {
		return func(b corev1.Taint) bool { return a.Key == b.Key && a.Effect == b.Effect }
	}
	var out []corev1.Taint
	for _, t := range n.Spec.Taints {
		if !slices.Contains(ours, t.Key) || slices.ContainsFunc(want, same(t)) {
			out = append(out, t)
		}
	}
	at := metav1.NewTime(now)
	for _, t := range want {
		if !slices.ContainsFunc(out, same(t)) {
			t.TimeAdded = &at
			out = append(out, t)
		}
	}
	return out
}
