package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func deviceClass(name, resource string, age time.Duration) resourcev1.DeviceClass {
	c := resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1_000_000, 0).Add(-age))},
	}
	if resource != "" {
		c.Spec.ExtendedResourceName = &resource
	}
	return c
}

// A class serves the resource named after it. Of several classes with the same extended resource, the newest serves it.
func TestClassesByResource(t *testing.T) {
	require.Equal(t, map[corev1.ResourceName]string{
		"deviceclass.resource.kubernetes.io/old": "old", "deviceclass.resource.kubernetes.io/new": "new",
		"deviceclass.resource.kubernetes.io/plain": "plain",
		"deviceclass.resource.kubernetes.io/a":     "a", "deviceclass.resource.kubernetes.io/b": "b",
		"example.com/gpu": "new",
		"example.com/nic": "a",
	},
		classesByResource([]resourcev1.DeviceClass{
			deviceClass("old", "example.com/gpu", time.Hour), deviceClass("new", "example.com/gpu", 0),
			deviceClass("plain", "", 0),
			deviceClass("b", "example.com/nic", 0), deviceClass("a", "example.com/nic", 0),
		}))
}

// Containers that run at the same time have separate devices. Init containers that end share later containers'.
func TestExtendedRequests(t *testing.T) {
	container := func(name string, gpus, nics int64) corev1.Container {
		c := corev1.Container{
			Name:      name,
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}
		for name, n := range map[corev1.ResourceName]int64{"example.com/gpu": gpus, "example.com/nic": nics} {
			if n >= 0 {
				c.Resources.Requests[name] = *resource.NewQuantity(n, resource.DecimalSI)
			}
		}
		return c
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("sidecar", 1, -1)
	sidecar.RestartPolicy = &always
	gpus := map[corev1.ResourceName]string{"example.com/gpu": "gpu"}
	both := map[corev1.ResourceName]string{"example.com/gpu": "gpu", "example.com/nic": "nic"}
	for _, c := range []struct {
		name     string
		spec     corev1.PodSpec
		classes  map[corev1.ResourceName]string
		requests []string // name class count
		mappings []string // container resource request
	}{
		{
			"one",
			corev1.PodSpec{Containers: []corev1.Container{container("a", 2, -1)}},
			gpus,
			[]string{"container-0-request-1 gpu 2"},
			[]string{"a example.com/gpu container-0-request-1"},
		},
		{"none", corev1.PodSpec{Containers: []corev1.Container{container("a", 0, 3)}}, gpus, nil, nil},
		{"two of two", corev1.PodSpec{Containers: []corev1.Container{container("a", 1, 2), container("b", -1, 1)}}, both,
			[]string{"container-0-request-1 gpu 1", "container-0-request-2 nic 2", "container-1-request-1 nic 1"},
			[]string{
				"a example.com/gpu container-0-request-1", "a example.com/nic container-0-request-2",
				"b example.com/nic container-1-request-1",
			}},
		{
			"init within",
			corev1.PodSpec{
				InitContainers: []corev1.Container{container("i", 1, -1)}, Containers: []corev1.Container{container("a", 2, -1)},
			}, gpus,
			[]string{"container-1-request-1 gpu 2"},
			[]string{"a example.com/gpu container-1-request-1", "i example.com/gpu container-1-request-1"},
		},
		{
			"init beyond",
			corev1.PodSpec{
				InitContainers: []corev1.Container{container("i", 3, -1), container("j", 5, -1), sidecar, container("k", 2, -1)},
				Containers:     []corev1.Container{container("a", 1, -1)},
			}, gpus,
			[]string{"container-1-request-1 gpu 3", "container-2-request-1 gpu 1", "container-4-request-1 gpu 1"},
			[]string{"sidecar example.com/gpu container-2-request-1", "a example.com/gpu container-4-request-1",
				"i example.com/gpu container-2-request-1", "i example.com/gpu container-4-request-1",
				"i example.com/gpu container-1-request-1",
				"j example.com/gpu container-2-request-1", "j example.com/gpu container-4-request-1",
				"j example.com/gpu container-1-request-1",
				"k example.com/gpu container-4-request-1", "k example.com/gpu container-1-request-1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			requests, mappings := extendedRequests(&c.spec, c.classes)
			var r, m []string
			for _, q := range requests {
				r = append(r, fmt.Sprintf("%s %s %d", q.Name, q.Exactly.DeviceClassName, q.Exactly.Count))
			}
			for _, q := range mappings {
				m = append(m, fmt.Sprintf("%s %s %s", q.ContainerName, q.ResourceName, q.RequestName))
			}
			require.Equal(t, c.requests, r)
			require.Equal(t, c.mappings, m)
		})
	}
}
