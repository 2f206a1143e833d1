package registry

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// BigPod returns a pod as a controller typically creates it: 3 KB of protobuf with two containers, probes and volumes.
func BigPod(name string) *corev1.Pod {
	probe := &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
	}
	one := func(name string) corev1.Container {
		c := corev1.Container{
			Name: name, Image: "registry.example/team/" + name + ":v1.2.3", Command: []string{"/bin/server"},
			Args: []string{"--listen=:8080", "--log-level=info"}, ReadinessProbe: probe, LivenessProbe: probe,
			Ports:        []corev1.ContainerPort{{Name: name + "http", ContainerPort: 8080}},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")}},
		}
		for i := range 8 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("v", 60)})
		}
		return c
	}
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work",
			Labels: map[string]string{"app": "web", "tier": "front", "pod-template-hash": "5d59d67564"},
			Annotations: map[string]string{
				"example.com/config-hash": strings.Repeat("a", 64), "example.com/note": strings.Repeat("n", 200),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d59d67564",
				UID: "0b2e6b1e-7d3c-4f65-9a53-5a55cbe6d5c4", Controller: &yes, BlockOwnerDeletion: &yes}}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{one("web"), one("sidecar")},
			Volumes: []corev1.Volume{
				{
					Name: "config",
					VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}},
					},
				},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}
