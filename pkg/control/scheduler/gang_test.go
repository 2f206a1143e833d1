package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/control/scheduler"
)

func gang(name string, least int32) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
				Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: least},
			},
		}}
}

func inGroup(p *corev1.Pod, group, cpu string) *corev1.Pod {
	p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	return p
}

func (c *cluster) says(name, text string) {
	c.Helper()
	c.wait(1, func(p *corev1.Pod) bool {
		for _, k := range p.Status.Conditions {
			if p.Name == name && k.Type == corev1.PodScheduled && strings.Contains(k.Message, text) {
				return true
			}
		}
		return false
	})
}

func (c *cluster) bound() (names []string) {
	var pods corev1.PodList
	require.NoError(c, c.List(c.ctx, &pods))
	for i := range pods.Items {
		if isBound(&pods.Items[i]) {
			names = append(names, pods.Items[i].Name)
		}
	}
	return names
}

// No pod of a gang is bound before minCount pods can be. Two gangs do not take half of the resources each.
func TestAGangGetsNodesTogether(t *testing.T) {
	c := start(t)
	c.node("a", "2")
	defer c.schedule()()
	require.NoError(t, c.Create(c.ctx, inGroup(pod("x0"), "x", "1")))
	c.says("x0", `waiting for pod group "x", which does not exist`)
	require.NoError(t, c.Create(c.ctx, gang("x", 3)))
	c.says("x0", `scheduled once there are 3, and 2 are missing`)
	require.NoError(t, c.Create(c.ctx, inGroup(pod("x1"), "x", "1")))
	require.NoError(t, c.Create(c.ctx, inGroup(pod("x2"), "x", "1")))
	c.says("x0",
		`pod group "x" needs nodes for 3 more pods at once, and found nodes for 2; pod x2: 0/1 nodes are available: 1 Insufficient cpu.`)
	require.Empty(t, c.bound())
	group := gang("x", 3)
	require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(group), group))

	require.NoError(t, c.Create(c.ctx, gang("y", 2))) // takes resources that x must not keep
	require.NoError(t, c.Create(c.ctx, inGroup(pod("y0"), "y", "1")))
	require.NoError(t, c.Create(c.ctx, inGroup(pod("y1"), "y", "1")))
	c.wait(2, isBound)
	require.Equal(t, []string{"y0", "y1"}, c.bound())

	c.node("b", "3")
	c.wait(5, isBound)
	c.group("x", metav1.ConditionTrue)
	require.NoError(t, c.Create(c.ctx, inGroup(pod("x3"), "x", "9"))) // beyond the minimum: scheduled alone
	c.says("x3", "0/2 nodes are available: 2 Insufficient cpu.")
}

func (c *cluster) group(name string, status metav1.ConditionStatus) {
	c.Helper()
	w, err := c.Watch(c.ctx, &schedulingv1beta1.PodGroupList{})
	require.NoError(c, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if g, ok := e.Object.(*schedulingv1beta1.PodGroup); ok && g.Name == name &&
			meta.IsStatusConditionPresentAndEqual(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled, status) {
			return
		}
	}
	require.FailNow(c, "the watch ended")
}

func TestAGangsMinimumMayFall(t *testing.T) {
	c := start(t)
	c.node("a", "2")
	require.NoError(t, c.Create(c.ctx, gang("x", 3)))
	for i := range 3 {
		require.NoError(t, c.Create(c.ctx, inGroup(pod(fmt.Sprint("x", i)), "x", "1")))
	}
	defer c.schedule()()
	c.group("x", metav1.ConditionFalse)
	require.Empty(t, c.bound())
	group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}}
	require.NoError(t,
		c.Patch(c.ctx, group,
			ctrl.RawPatch(types.MergePatchType, []byte(`{"spec":{"schedulingPolicy":{"gang":{"minCount":2}}}}`))))
	c.wait(2, isBound)
	c.group("x", metav1.ConditionTrue)
}

// Capacity that lets any member of a gang fit retries the gang.
func TestAGangIsHelpedThroughAnyMember(t *testing.T) {
	c := start(t)
	c.node("a", "2")
	c.node("b", "1")
	full := inGroup(pod("full"), "none", "1")
	full.Spec.SchedulingGroup, full.Spec.NodeName = nil, "b"
	require.NoError(t, c.Create(c.ctx, full))
	require.NoError(t, c.Create(c.ctx, gang("x", 2)))
	prefers, needs := inGroup(pod("x0"), "x", "1"), inGroup(pod("x1"), "x", "2")
	prefers.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100,
				Preference: corev1.NodeSelectorTerm{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}},
					},
				}}},
		},
	}
	needs.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "a"}
	require.NoError(t, c.Create(c.ctx, prefers))
	require.NoError(t, c.Create(c.ctx, needs))
	defer c.schedule()()
	c.says("x0", `found nodes for 1; pod x1`)
	zero := int64(0)
	require.NoError(t, c.Delete(c.ctx, full, &ctrl.DeleteOptions{GracePeriodSeconds: &zero}))
	c.wait(2, isBound)
	c.group("x", metav1.ConditionTrue)
}

// Pods of a group without minimum are scheduled one by one, including those that waited until the scheduler had
// listed the pod groups. Pod groups do not get the default priority of pods.
func TestAGroupWithoutMinimum(t *testing.T) {
	c := start(t)
	c.node("a", "8")
	require.NoError(t,
		c.Create(c.ctx, &schedulingv1.PriorityClass{
			ObjectMeta:    metav1.ObjectMeta{Name: "usual"},
			Value:         5,
			GlobalDefault: true,
		}))
	for late := time.Now().Add(time.Minute); ; { // until the admission plugin has seen the class
		p := pod("probe")
		require.NoError(t, c.Create(c.ctx, p, ctrl.DryRunAll))
		if p.Spec.PriorityClassName == "usual" {
			break
		}
		require.True(t, time.Now().Before(late), "the default class is never known")
	}
	group := gang("x", 0)
	group.Spec.SchedulingPolicy = schedulingv1beta1.PodGroupSchedulingPolicy{
		Basic: &schedulingv1beta1.BasicSchedulingPolicy{},
	}
	require.NoError(t, c.Create(c.ctx, group))
	for i := range 5 {
		require.NoError(t, c.Create(c.ctx, inGroup(pod(fmt.Sprint("x", i)), "x", "1")))
	}
	defer c.schedule()()
	c.wait(5, isBound)
}

func TestWhatAGangCannotHaveIsRefused(t *testing.T) {
	c := start(t)
	for name, change := range map[string]func(*schedulingv1beta1.PodGroupSpec){
		"schedulingConstraints": func(s *schedulingv1beta1.PodGroupSpec) {
			s.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
				Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}},
			}
		},
		"resourceClaims": func(s *schedulingv1beta1.PodGroupSpec) {
			claim := "c"
			s.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "c", ResourceClaimName: &claim}}
		},
		"disruptionMode": func(s *schedulingv1beta1.PodGroupSpec) {
			s.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
		},
		"minCount": func(s *schedulingv1beta1.PodGroupSpec) { s.SchedulingPolicy.Gang.MinCount = 0 },
	} {
		g := gang("x", 2)
		change(&g.Spec)
		err := c.Create(c.ctx, g)
		require.True(t, apierrors.IsInvalid(err), "%s: %v", name, err)
		require.ErrorContains(t, err, name)
	}
}

// The explanation contains what the gang needs, and a verdict for each node.
func TestAGangIsExplained(t *testing.T) {
	c := start(t)
	c.node("a", "2")
	require.NoError(t, c.Create(c.ctx, inGroup(pod("x0"), "x", "1")))
	explain := func() string {
		e, err := scheduler.Explain(c.ctx, scheduler.Config{Client: c}, ctrl.ObjectKey{Namespace: "default", Name: "x0"})
		require.NoError(t, err)
		require.True(t, e.Nodes[0].Fits)
		return e.Group
	}
	require.Equal(t, `waiting for pod group "x", which does not exist`, explain())
	require.NoError(t, c.Create(c.ctx, gang("x", 3)))
	placed := inGroup(pod("x1"), "x", "1")
	placed.Spec.NodeName = "a"
	require.NoError(t, c.Create(c.ctx, placed))
	require.Equal(t, `pod group "x" needs nodes for at least 3 pods at once: 1 have one, and 1 wait`, explain())
}
