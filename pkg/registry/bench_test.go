package registry

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/kind/builtin"
)

// bigPod is about what a controller creates: 3 KB of protobuf with two containers, probes and volumes.
func bigPod(name string) *corev1.Pod {
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	one := func(name string) corev1.Container {
		c := corev1.Container{Name: name, Image: "registry.example/team/" + name + ":v1.2.3", Command: []string{"/bin/server"},
			Args: []string{"--listen=:8080", "--log-level=info"}, ReadinessProbe: probe, LivenessProbe: probe,
			Ports:        []corev1.ContainerPort{{Name: name + "http", ContainerPort: 8080}},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")}}}
		for i := range 8 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("v", 60)})
		}
		return c
	}
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work",
			Labels:      map[string]string{"app": "web", "tier": "front", "pod-template-hash": "5d59d67564"},
			Annotations: map[string]string{"example.com/config-hash": strings.Repeat("a", 64), "example.com/note": strings.Repeat("n", 200)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d59d67564",
				UID: "0b2e6b1e-7d3c-4f65-9a53-5a55cbe6d5c4", Controller: &yes, BlockOwnerDeletion: &yes}}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{one("web"), one("sidecar")},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}

func asUser(ctx context.Context) context.Context {
	return request.WithUser(ctx, &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}})
}

func pods(namespace, name string) Target {
	return Target{Resource: builtin.Kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("Pod")), Namespace: namespace, Name: name}
}

// benchRegistry has upstream's plugins, and the service account they want.
func benchRegistry(b testing.TB) *Registry {
	r := whole(b, 0)
	require.NoError(b, r.usePlugins(Plugins{}))
	require.NoError(b, admin(r).Create(context.Background(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "work"}}))
	return r
}

func BenchmarkCreatePod(b *testing.B) {
	for _, writers := range []int{1, 32} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			r := benchRegistry(b)
			ctx := asUser(context.Background())
			var n atomic.Int64
			p := bigPod("")
			b.ReportAllocs()
			b.SetParallelism((writers + 1) / 2) // times GOMAXPROCS, which is 2 on the machine of the budgets
			b.ResetTimer()
			work := func() {
				o := p.DeepCopy()
				o.Name = fmt.Sprintf("p%d", n.Add(1))
				if _, err := r.Create(ctx, pods("work", ""), o, metav1.CreateOptions{}); err != nil {
					b.Error(err)
				}
			}
			if writers == 1 {
				for b.Loop() {
					work()
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						work()
					}
				})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}

func BenchmarkPatchStatus(b *testing.B) {
	r := benchRegistry(b)
	ctx := asUser(context.Background())
	_, err := r.Create(ctx, pods("work", ""), bigPod("p"), metav1.CreateOptions{})
	require.NoError(b, err)
	t := pods("work", "p")
	t.Subresource = "status"
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		data := fmt.Appendf(nil, `{"status":{"message":"%d"}}`, i)
		if _, err := r.Patch(ctx, t, types.StrategicMergePatchType, data, metav1.PatchOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	r := benchRegistry(b)
	ctx := asUser(context.Background())
	_, err := r.Create(ctx, pods("work", ""), bigPod("p"), metav1.CreateOptions{})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Get(ctx, pods("work", "p"), metav1.GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDeleteCollection3000(b *testing.B) {
	r := benchRegistry(b)
	ctx := asUser(context.Background())
	for b.Loop() {
		b.StopTimer()
		p := bigPod("")
		for i := range 3000 {
			o := p.DeepCopy()
			o.Name = fmt.Sprintf("p%d", i)
			if _, err := r.Create(ctx, pods("work", ""), o, metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		if _, err := r.DeleteCollection(ctx, pods("work", ""), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPlugins is what upstream's admission adds to a pod's creation.
func BenchmarkPlugins(b *testing.B) {
	r := benchRegistry(b)
	c, err := r.begin(asUser(context.Background()), pods("work", "p"), "create", nil)
	require.NoError(b, err)
	p := bigPod("p")
	p.OwnerReferences = nil
	b.ReportAllocs()
	for b.Loop() {
		o := p.DeepCopy()
		in, err := c.Resource.Internal(o)
		require.NoError(b, err)
		require.NoError(b, c.admit(in, nil, admission.Create, &metav1.CreateOptions{}))
		require.NoError(b, c.validate(in, nil, "p", admission.Create, &metav1.CreateOptions{}))
	}
}
