package nodelifecycle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func node(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	}
	return n
}

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Effect: effect}
}

func keys(ts []corev1.Taint) (out []string) {
	for _, t := range ts {
		out = append(out, t.Key+":"+string(t.Effect))
	}
	return out
}

func TestPlan(t *testing.T) {
	const (
		notReady    = corev1.TaintNodeNotReady
		unreachable = corev1.TaintNodeUnreachable
	)
	cordoned := node(corev1.ConditionTrue)
	cordoned.Spec.Unschedulable = true
	pressed := node(corev1.ConditionTrue)
	pressed.Status.Conditions = append(pressed.Status.Conditions, corev1.NodeCondition{
		Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue,
	})
	for name, c := range map[string]struct {
		node    *corev1.Node
		silent  time.Duration
		taints  []string // nil: left alone
		unknown bool
		unready bool
		again   time.Duration
	}{
		"well": {node: node(corev1.ConditionTrue), silent: 10 * time.Second, again: 30 * time.Second},
		"became ready": {
			node: node(corev1.ConditionTrue, taint(notReady, corev1.TaintEffectNoSchedule),
				taint("mine", corev1.TaintEffectNoExecute)), again: DefaultPatience, taints: []string{"mine:NoExecute"},
		},
		"not ready": {
			node: node(corev1.ConditionFalse), again: DefaultPatience,
			taints: []string{notReady + ":NoSchedule", notReady + ":NoExecute"},
		},
		"silent": {
			node: node(corev1.ConditionTrue), silent: DefaultPatience, unknown: true, unready: true,
			taints: []string{unreachable + ":NoSchedule", unreachable + ":NoExecute"},
		},
		"was not ready": {
			node: node(corev1.ConditionFalse, taint(notReady, corev1.TaintEffectNoSchedule),
				taint(notReady, corev1.TaintEffectNoExecute)), silent: DefaultPatience, unknown: true, unready: true,
			taints: []string{unreachable + ":NoSchedule", unreachable + ":NoExecute"},
		},
		"never spoke": {
			node: node(""), silent: DefaultPatience, unknown: true, unready: true,
			taints: []string{unreachable + ":NoSchedule", unreachable + ":NoExecute"},
		},
		"new": {node: node(""), again: DefaultPatience, taints: []string{notReady + ":NoSchedule"}},
		"cordoned": {
			node: cordoned, again: DefaultPatience, taints: []string{corev1.TaintNodeUnschedulable + ":NoSchedule"},
		},
		"disk": {
			node: pressed, again: DefaultPatience, taints: []string{corev1.TaintNodeDiskPressure + ":NoSchedule"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Observed{Node: c.node, Heard: now.Add(-c.silent), Patience: DefaultPatience}
			a := Plan(o, now)
			require.Equal(t, c.taints, keys(a.Taints))
			require.Equal(t, c.taints != nil, a.SetTaints)
			require.Equal(t, c.unready, a.PodsNotReady)
			require.Equal(t, c.again, a.Again)
			require.Equal(t, c.unknown, a.Conditions != nil)
			for _, k := range a.Conditions {
				require.Equal(t, corev1.ConditionUnknown, k.Status)
			}
			// A plan after this one must be empty.
			n := c.node.DeepCopy()
			if a.Conditions != nil {
				n.Status.Conditions = a.Conditions
			}
			if a.SetTaints {
				n.Spec.Taints = a.Taints
			}
			again := Plan(Observed{Node: n, Heard: o.Heard, Patience: o.Patience}, now.Add(time.Millisecond))
			require.Nil(t, again.Conditions)
			require.False(t, again.SetTaints)
		})
	}
	a := Plan(Observed{Node: node(corev1.ConditionTrue), Heard: now.Add(-time.Minute), Patience: time.Minute}, now)
	require.Equal(t, &metav1.Time{Time: now}, a.Taints[0].TimeAdded)
}
