package controllers_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
	"github.com/coracle-dev/coracle/pkg/testing/fakenode"
)

// TestFakeNodes: pods of fake nodes run, end as annotated and terminate. When the nodes stop, nothing of them remains.
func TestFakeNodes(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelWarn, HTTP: true})
	c.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "real-1"}})
	foreign, err := fakenode.New(fakenode.Config{
		REST:   c.REST("admin", user.SystemPrivilegedGroup),
		Count:  2,
		Prefix: "real-",
	})
	require.NoError(t, err)
	require.ErrorContains(t, foreign.Run(c.Ctx), "node real-1 exists and is not a fake node")
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Name: "real-1"}, &corev1.Node{}), "it is left alone")
	require.True(t, apierrors.IsNotFound(c.Get(c.Ctx, ctrl.ObjectKey{Name: "real-0"}, &corev1.Node{})),
		"what it registered is removed")

	nodes, err := fakenode.New(fakenode.Config{REST: c.REST("admin", user.SystemPrivilegedGroup), Count: 3, Pods: 20})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(c.Ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- nodes.Run(ctx) }()

	c.Make(deployment("web", "one", 8), jobOf("indexed", 0, 20, 5))
	web := controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
	require.EqualValues(t, 20, c.jobIs("indexed", batchv1.JobComplete).Status.Succeeded)
	for name, a := range map[string]map[string]string{
		"fails": {fakenode.DurationAnnotation: "10ms", fakenode.ExitCodeAnnotation: "3"},
		"wrong": {fakenode.DurationAnnotation: "soon"},
	} {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "x"}},
			},
		}
		p.Namespace, p.Annotations = "default", a
		c.Make(p)
		is := controlplane.Until(c, &corev1.PodList{}, "default", name, func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodFailed
		})
		if name == "fails" {
			require.EqualValues(t, 3, is.Status.ContainerStatuses[0].State.Terminated.ExitCode)
		} else {
			require.Equal(t, `annotation coracle.dev/fake-duration: "soon" is not a duration such as 5s`, is.Status.Message)
		}
	}
	var pods corev1.PodList
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.MatchingLabels(web.Spec.Selector.MatchLabels)))
	require.NotEmpty(t, pods.Items[0].Status.PodIP)
	require.NoError(t, c.Delete(c.Ctx, &pods.Items[0]))
	c.Gone(pods.Items[0].DeepCopy())
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)

	// A node that was marked not ready for late heartbeats becomes ready again.
	readiness := func(n *corev1.Node) *corev1.NodeCondition {
		return &n.Status.Conditions[slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady
		})]
	}
	var version string
	for version == "" {
		var node corev1.Node
		require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Name: "fake-1"}, &node))
		lost := node.DeepCopy()
		readiness(lost).Status = corev1.ConditionUnknown
		if err := c.Status().Update(c.Ctx, lost); !apierrors.IsConflict(err) {
			require.NoError(t, err)
			version = lost.ResourceVersion
		}
	}
	controlplane.Until(c, &corev1.NodeList{}, "", "fake-1", func(n *corev1.Node) bool {
		return n.ResourceVersion != version && readiness(n).Status == corev1.ConditionTrue
	})

	// Delete the owners first, so that no controller replaces the pods while the nodes are removed.
	var sets appsv1.ReplicaSetList
	require.NoError(t, c.List(c.Ctx, &sets, ctrl.MatchingLabels(web.Spec.Selector.MatchLabels)))
	for _, owner := range []ctrl.Object{web, &sets.Items[0]} {
		require.NoError(t, c.Delete(c.Ctx, owner, ctrl.PropagationPolicy(metav1.DeletePropagationOrphan)))
		c.Gone(owner)
	}
	cancel()
	require.NoError(t, <-ended)
	for _, name := range []string{"fake-0", "fake-1", "fake-2"} {
		require.True(t, apierrors.IsNotFound(c.Get(c.Ctx, ctrl.ObjectKey{Name: name}, &corev1.Node{})))
	}
	require.NoError(t, c.List(c.Ctx, &pods))
	for _, p := range pods.Items {
		require.Empty(t, p.Spec.NodeName, p.Name)
	}
}
