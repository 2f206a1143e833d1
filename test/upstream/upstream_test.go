package upstream_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-dev/coracle/test/host"
	"github.com/coracle-dev/coracle/test/upstream"
)

var pinned = regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)

// Dependencies that both modules pin must have the same version: then most packages of upstream's programs are
// compiled already, and the compared servers do not differ in them.
func TestModulesArePinnedAlike(t *testing.T) {
	versions := func(file string) map[string]string {
		text, err := os.ReadFile(filepath.Join(host.Root(t), file))
		require.NoError(t, err)
		all := map[string]string{}
		for _, m := range pinned.FindAllStringSubmatch(string(text), -1) {
			all[m[1]] = m[2]
		}
		return all
	}
	ours, theirs := versions("go.mod"), versions("hack/upstream/go.mod")
	require.NotEmpty(t, theirs["k8s.io/kubernetes"])
	for module, version := range theirs {
		if ours[module] != "" {
			require.Equal(t, ours[module], version, "hack/upstream/go.mod: %s", module)
		}
	}
}

// TestUpstreamRuns checks the programs themselves: controllers create a Deployment's pod and the scheduler binds it.
func TestUpstreamRuns(t *testing.T) {
	upstream.Needs(t)
	cluster := upstream.New(t, host.New(t), upstream.Config{Controllers: true, Scheduler: true})
	api, err := kubernetes.NewForConfig(cluster.REST())
	require.NoError(t, err)
	version, err := api.Discovery().ServerVersion()
	require.NoError(t, err)
	require.Regexp(t, `^v1\.37\.`, version.GitVersion)

	capacity := corev1.ResourceList{
		corev1.ResourcePods:   resource.MustParse("10"),
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("4Gi"),
	}
	node, err := api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	node.Status.Capacity, node.Status.Allocatable = capacity, capacity
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()},
	}
	_, err = api.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)

	w, err := api.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	labels := map[string]string{"app": "web"}
	_, err = api.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for e := range w.ResultChan() {
		if p, is := e.Object.(*corev1.Pod); is && p.Spec.NodeName == "n" {
			return
		}
	}
	t.Fatal("the watch ended before the pod was bound")
}
