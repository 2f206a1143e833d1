package registry_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

func asUser(ctx context.Context) context.Context {
	return request.WithUser(ctx, &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}})
}

func pods(namespace, name string) registry.Target {
	return registry.Target{
		Resource:  assembled.Kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("Pod")),
		Namespace: namespace,
		Name:      name,
	}
}

// benchRegistry has upstream's plugins and the service account they need.
func benchRegistry(b testing.TB) *registry.Registry {
	e := registrytest.Start(b, registrytest.Options{})
	c := e.As("admin")
	require.NoError(b, c.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}}))
	require.NoError(b,
		c.Create(b.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "work"}}))
	return e.Registry
}

func BenchmarkCreatePod(b *testing.B) {
	for _, writers := range []int{1, 32} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			r := benchRegistry(b)
			ctx := asUser(context.Background())
			var n atomic.Int64
			p := registry.BigPod("")
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
	_, err := r.Create(ctx, pods("work", ""), registry.BigPod("p"), metav1.CreateOptions{})
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

// BenchmarkPatchFinalizers makes the patch of finalizers that each pod of a Job gets.
func BenchmarkPatchFinalizers(b *testing.B) {
	r := benchRegistry(b)
	ctx := asUser(context.Background())
	_, err := r.Create(ctx, pods("work", ""), registry.BigPod("p"), metav1.CreateOptions{})
	require.NoError(b, err)
	b.ReportAllocs()
	patches := []string{
		`{"metadata":{"finalizers":["example.com/a"]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/a"]}}`,
	}
	for i := 0; b.Loop(); i++ {
		if _, err := r.Patch(ctx, pods("work", "p"), types.StrategicMergePatchType, []byte(patches[i%2]),
			metav1.PatchOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	r := benchRegistry(b)
	ctx := asUser(context.Background())
	_, err := r.Create(ctx, pods("work", ""), registry.BigPod("p"), metav1.CreateOptions{})
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
		p := registry.BigPod("")
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

func BenchmarkCreateService(b *testing.B) {
	target := registry.Target{
		Resource: assembled.Kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("Service")), Namespace: "work",
	}
	for _, kind := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
		for _, writers := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/writers=%d", kind, writers), func(b *testing.B) {
				r := benchRegistry(b)
				ctx := asUser(context.Background())
				var n atomic.Int64
				b.ReportAllocs()
				b.SetParallelism((writers + 1) / 2)
				b.ResetTimer()
				work := func() {
					s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", n.Add(1)), Namespace: "work"},
						Spec: corev1.ServiceSpec{
							Type:     kind,
							Selector: map[string]string{"app": "x"},
							Ports:    []corev1.ServicePort{{Port: 80}},
						}}
					if _, err := r.Create(ctx, target, s, metav1.CreateOptions{}); err != nil {
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
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "services/s")
			})
		}
	}
}
