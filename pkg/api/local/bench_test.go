package local_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

func filled(b *testing.B, n int) client.Interface {
	c := admin(b)
	for i := range n {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "work",
				Name:      fmt.Sprintf("p%05d", i),
				Labels:    map[string]string{"app": "a"},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		if err := c.Create(context.Background(), p); err != nil {
			b.Fatal(err)
		}
	}
	return c
}

func BenchmarkClientGet(b *testing.B) {
	c := filled(b, 10)
	var p corev1.Pod
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Get(context.Background(), ctrl.ObjectKey{Namespace: "work", Name: "p00003"}, &p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClientList3000(b *testing.B) {
	c := filled(b, 3000)
	b.ReportAllocs()
	for b.Loop() {
		var l corev1.PodList
		if err := c.List(context.Background(), &l, ctrl.InNamespace("work")); err != nil || len(l.Items) != 3000 {
			b.Fatal(err, len(l.Items))
		}
	}
}

// BenchmarkClientEvent measures the time from the return of a create until an informer's handler is called.
func BenchmarkClientEvent(b *testing.B) {
	c := admin(b)
	ctx := context.Background()
	i, err := c.Cache().GetInformer(ctx, &corev1.ConfigMap{})
	if err != nil {
		b.Fatal(err)
	}
	at := make(chan time.Time, 1)
	if _, err := i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { at <- time.Now() }}); err !=
		nil {
		b.Fatal(err)
	}
	var late time.Duration
	n := 0
	for b.Loop() {
		n++
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: fmt.Sprintf("m%d", n)}}
		if err := c.Create(ctx, m); err != nil {
			b.Fatal(err)
		}
		done := time.Now()
		late += (<-at).Sub(done)
	}
	b.ReportMetric(float64(late.Nanoseconds())/float64(n), "ns-after-create")
}
