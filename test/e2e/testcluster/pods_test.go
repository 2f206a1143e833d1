// Package testcluster tests pkg/testing/testcluster's clusters with real pods.
package testcluster

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/testing/testcluster"
)

// TestPodsRun runs a container in a test's cluster. It needs root, bin/coracle and the images in dist/images.
func TestPodsRun(t *testing.T) {
	const root = "../../../"
	coracle, err := filepath.Abs(root + "bin/coracle")
	require.NoError(t, err)
	require.FileExists(t, coracle, "run `make build images` first")
	began := time.Now()
	cluster := testcluster.New(t, testcluster.Config{
		Parts:   testcluster.Pods,
		Coracle: coracle,
		Images:  []string{root + "dist/images/busybox.tar"},
	})
	t.Logf("started after %s", time.Since(began))
	c := cluster.Client()
	w, err := c.Watch(t.Context(), &corev1.PodList{})
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t,
		c.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "seven"}, Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "seven", Image: "busybox:1.36", Command: []string{"sh", "-c", "exit 7"}}},
			},
		}))
	for e := range w.ResultChan() {
		if pod := e.Object.(*corev1.Pod); pod.Name == "seven" && pod.Status.Phase == corev1.PodFailed {
			require.Equal(t, int32(7), pod.Status.ContainerStatuses[0].State.Terminated.ExitCode)
			return
		}
	}
	t.Fatal("the watch ended before the pod did")
}
