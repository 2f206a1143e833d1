package controllers_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func daemonSet(name, image string) *appsv1.DaemonSet {
	d := deployment(name, image, 1)
	return &appsv1.DaemonSet{
		ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
}

// everywhere reports whether kubectl rollout status would return for that many nodes.
func everywhere(nodes int32) func(*appsv1.DaemonSet) bool {
	return func(d *appsv1.DaemonSet) bool {
		s := d.Status
		return s.ObservedGeneration >= d.Generation && s.DesiredNumberScheduled == nodes &&
			s.UpdatedNumberScheduled == nodes && s.NumberAvailable == nodes
	}
}

// TestDaemonSetFollowsTheNodes runs over HTTP with the rights of the bootstrap policy.
func TestDaemonSetFollowsTheNodes(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: true})
	c.Node("a")
	c.Node("b")
	d := daemonSet("log", "one")
	c.Make(d)
	controlplane.Until(c, &appsv1.DaemonSetList{}, "default", "log", everywhere(2))
	c.Node("c")
	controlplane.Until(c, &appsv1.DaemonSetList{}, "default", "log", everywhere(3))

	// A cordoned node keeps its daemon pod, and a new one gets one.
	controlplane.Edit(c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, func(n *corev1.Node) {
		n.Spec.Unschedulable = true
	})
	d = controlplane.Edit(c, d, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "two" })
	controlplane.Until(c, &appsv1.DaemonSetList{}, "default", "log", func(is *appsv1.DaemonSet) bool {
		return is.Generation >= d.Generation && everywhere(3)(is)
	})
	var pods corev1.PodList
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
	on := map[string]string{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			on[p.Spec.NodeName] += p.Spec.Containers[0].Image
		}
	}
	require.Equal(t, map[string]string{"a": "two", "b": "two", "c": "two"}, on)
	var revisions appsv1.ControllerRevisionList
	require.NoError(t, c.List(c.Ctx, &revisions, ctrl.InNamespace("default")))
	numbers := []int64{}
	for _, r := range revisions.Items {
		numbers = append(numbers, r.Revision)
	}
	slices.Sort(numbers)
	require.Equal(t, []int64{1, 2}, numbers)

	require.NoError(t, c.Delete(c.Ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	controlplane.Until(c, &appsv1.DaemonSetList{}, "default", "log", everywhere(2))

	// Another DaemonSet with the same selector adopts the pods that a deletion orphaned.
	require.NoError(t, c.Delete(c.Ctx, d, ctrl.PropagationPolicy(metav1.DeletePropagationOrphan)))
	c.Gone(d.DeepCopy())
	c.Make(daemonSet("log", "two"))
	d = controlplane.Until(c, &appsv1.DaemonSetList{}, "default", "log", everywhere(2))
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			require.Equal(t, d.UID, metav1.GetControllerOf(&p).UID)
		}
	}
	require.NoError(t, c.Delete(c.Ctx, d.DeepCopy(), ctrl.PropagationPolicy(metav1.DeletePropagationForeground)))
	c.Gone(d.DeepCopy())
	require.NoError(t, c.List(c.Ctx, &revisions, ctrl.InNamespace("default")))
	require.Empty(t, revisions.Items)
}

// TestDaemonSetOnManyNodes is fast because the reconciler reads by index and runs once for a burst of changes.
func TestDaemonSetOnManyNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("makes many nodes")
	}
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	for i := range many {
		c.Node(fmt.Sprintf("n%d", i))
	}
	began := time.Now()
	c.Make(daemonSet("log", "one"))
	controlplane.Until(c, &appsv1.DaemonSetList{}, "default", "log", everywhere(many))
	t.Log("a daemon on each of", many, "nodes in", time.Since(began))
}

func statefulSet(name, image string, replicas int32) *appsv1.StatefulSet {
	d := deployment(name, image, 1)
	return &appsv1.StatefulSet{
		ObjectMeta: d.ObjectMeta,
		Spec: appsv1.StatefulSetSpec{
			Replicas:    &replicas,
			Selector:    d.Spec.Selector,
			ServiceName: name,
			Template:    d.Spec.Template,
		},
	}
}

// steady reports whether kubectl rollout status would return.
func steady(s *appsv1.StatefulSet) bool {
	n := *s.Spec.Replicas
	return s.Status.ObservedGeneration >= s.Generation && s.Status.Replicas == n && s.Status.AvailableReplicas == n &&
		s.Status.UpdatedReplicas == n &&
		s.Status.CurrentRevision == s.Status.UpdateRevision
}

// TestStatefulSetKeepsIdentities runs over HTTP with the rights of the bootstrap policy.
func TestStatefulSetKeepsIdentities(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: true})
	c.Node("a")
	taken := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-1", Labels: map[string]string{"stuck": "yes"}},
		Spec:       daemonSet("x", "x").Spec.Template.Spec,
	}
	s := statefulSet("db", "one", 3)
	c.Make(taken, s)
	controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
		return e.Reason == "FailedCreate" && strings.HasPrefix(e.Message, "Create Pod db-1 in StatefulSet db failed error: ")
	})
	require.NoError(t, c.Delete(c.Ctx, taken, ctrl.GracePeriodSeconds(0)))
	controlplane.Until(c, &appsv1.StatefulSetList{}, "default", "db", steady)

	s = controlplane.Edit(c, s, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
	controlplane.Until(c, &appsv1.StatefulSetList{}, "default", "db", func(is *appsv1.StatefulSet) bool {
		return is.Generation >= s.Generation && steady(is)
	})
	var pods corev1.PodList
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
	images := map[string]string{}
	for _, p := range pods.Items {
		images[p.Name] = p.Spec.Containers[0].Image
	}
	require.Equal(t, map[string]string{"db-0": "two", "db-1": "two", "db-2": "two"}, images)

	// Another StatefulSet of the same name adopts orphaned pods and their revision history.
	require.NoError(t, c.Delete(c.Ctx, s, ctrl.PropagationPolicy(metav1.DeletePropagationOrphan)))
	c.Gone(s.DeepCopy())
	c.Make(statefulSet("db", "two", 2))
	s = controlplane.Until(c, &appsv1.StatefulSetList{}, "default", "db", steady)
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
	require.Len(t, pods.Items, 2)
	for _, p := range pods.Items {
		require.Equal(t, s.UID, metav1.GetControllerOf(&p).UID)
	}
	var revisions appsv1.ControllerRevisionList
	require.NoError(t, c.List(c.Ctx, &revisions, ctrl.InNamespace("default")))
	require.Len(t, revisions.Items, 2)
	require.NoError(t, c.Delete(c.Ctx, s.DeepCopy(), ctrl.PropagationPolicy(metav1.DeletePropagationForeground)))
	c.Gone(s.DeepCopy())
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
	require.Empty(t, pods.Items)
}

func TestStatefulSetOfMany(t *testing.T) {
	if testing.Short() {
		t.Skip("makes many pods")
	}
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	for i := range 10 {
		c.Node(fmt.Sprintf("n%d", i))
	}
	s := statefulSet("db", "one", many)
	s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	began := time.Now()
	c.Make(s)
	controlplane.Until(c, &appsv1.StatefulSetList{}, "default", "db", steady)
	t.Log(many, "pods in", time.Since(began))
}
