package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

func (c *cluster) idlePod(name string) *corev1.Pod {
	p := c.pod(name)
	p.Labels = map[string]string{"app": "bench", "tier": "none"}
	p.Spec.SchedulerName = "bench-nobody"
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "some value"}, {Name: "B", Value: "another value"}}
	return p
}

// writeMany creates n pods with the given number of writers through client-go.
func (c *cluster) writeMany(ctx context.Context, ns, prefix string, n, writers int) (time.Duration, error) {
	return c.write(ctx, ns, n, writers, func(client kubernetes.Interface, i int) error {
		_, err := client.CoreV1().Pods(ns).Create(ctx, c.idlePod(prefix+strconv.Itoa(i)), metav1.CreateOptions{})
		return err
	})
}

// writeEncoded is writeMany with pods encoded beforehand and responses not decoded: on the same machine client-go
// takes nearly as much processor time per pod as the server.
func (c *cluster) writeEncoded(ctx context.Context, ns, prefix string, n, writers int) (time.Duration, error) {
	pods := make([][]byte, n)
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
		corev1.SchemeGroupVersion)
	for i := range pods {
		var err error
		if pods[i], err = runtime.Encode(encoder, c.idlePod(prefix+strconv.Itoa(i))); err != nil {
			return 0, err
		}
	}
	return c.write(ctx, ns, n, writers, func(client kubernetes.Interface, i int) error {
		_, err := client.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").
			SetHeader("Content-Type", runtime.ContentTypeProtobuf).Body(pods[i]).DoRaw(ctx)
		return err
	})
}

// write calls create for 0 to n-1 from the given number of goroutines, which share up to eight connections.
func (c *cluster) write(ctx context.Context, ns string, n, writers int,
	create func(client kubernetes.Interface, i int) error) (time.Duration, error) {
	clients, err := c.clients(min(writers, 8))
	if err != nil {
		return 0, err
	}
	for _, client := range clients { // connect before measuring
		if _, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	err = inParallel(writers, n, func(w, i int) error { return create(clients[w%len(clients)], i) })
	return time.Since(began), err
}

// objects measures the API alone, with pods that never run.
func objects(ctx context.Context, c *cluster) (figures []figure, err error) {
	single := min(c.objects, 1000)
	err = c.within(ctx, func(ns string) (err error) {
		figures, err = c.creates(ctx, ns, "single-", single, 1, 1500)
		return err
	})
	if err != nil {
		return figures, err
	}
	return figures, c.within(ctx, func(ns string) error {
		budget := 0.0
		if c.writers == 32 {
			budget = 5000
		}
		found, err := c.creates(ctx, ns, "many-", c.objects, c.writers, budget)
		figures = append(figures, found...)
		if err != nil {
			return err
		}
		pods := c.client.CoreV1().Pods(ns)
		list, raw, get, err := c.reads(ctx, ns)
		if err != nil {
			return err
		}
		listBudget, deleteBudget := 0.0, 0.0
		if c.objects == 3000 {
			listBudget, deleteBudget = 8, 1000
		}
		answer := millis(fmt.Sprintf("list of %d pods, until the last byte", c.objects), raw, listBudget)
		figures = append(figures, answer, millis("  with client-go's decoding", list, 0), millis("get", get, 0.2))
		began := time.Now()
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
		figures = append(figures, millis(fmt.Sprintf("deletecollection of %d", c.objects), time.Since(began), deleteBudget))
		left, err := pods.List(ctx, metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			figures[len(figures)-1].Note = fmt.Sprintf("%d still there afterwards", len(left.Items))
		}
		return err
	})
}

// creates measures n creates in the namespace ns, and n creates of pods encoded beforehand in another namespace.
func (c *cluster) creates(ctx context.Context, ns, prefix string, n, writers int,
	budget float64) (figures []figure, err error) {
	by := counted(writers, "writer")
	rate := func(name string, took time.Duration, budget float64) {
		figures = append(figures, figure{
			Name:   name,
			Value:  float64(n) / took.Seconds(),
			Unit:   "/s",
			Budget: budget,
			More:   true,
		})
	}
	before := c.processorTime()
	took, err := c.writeMany(ctx, ns, prefix, n, writers)
	if err != nil {
		return nil, err
	}
	rate("pod creates, "+by, took, budget)
	err = c.within(ctx, func(ns string) error {
		took, err := c.writeEncoded(ctx, ns, prefix, n, writers)
		if err != nil {
			return err
		}
		rate("  encoded beforehand, answers not decoded, "+by, took, 0)
		if after := c.processorTime(); c.options.pids != "" {
			used := after[0] + after[1] - before[0] - before[1]
			figures = append(figures, figure{
				Name:  "  processor time of the server for each, " + by,
				Value: float64(used.Microseconds()) / float64(2*n),
				Unit:  "µs",
			})
		}
		return nil
	})
	return figures, err
}

// reads measures a list (decoded and as bytes) and a get. Each is the median of several.
func (c *cluster) reads(ctx context.Context, ns string) (list, raw, get time.Duration, err error) {
	var lists, raws, gets []time.Duration
	pods := c.client.CoreV1().Pods(ns)
	for range 11 {
		began := time.Now()
		got, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, 0, 0, err
		}
		if len(got.Items) != c.objects {
			return 0, 0, 0, fmt.Errorf("the list has %d pods instead of %d", len(got.Items), c.objects)
		}
		lists = append(lists, time.Since(began))
		began = time.Now()
		if _, err := c.client.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").DoRaw(ctx); err != nil {
			return 0, 0, 0, err
		}
		raws = append(raws, time.Since(began))
	}
	for range 300 {
		began := time.Now()
		if _, err := pods.Get(ctx, "many-1", metav1.GetOptions{}); err != nil {
			return 0, 0, 0, err
		}
		gets = append(gets, time.Since(began))
	}
	return percentile(lists, 50), percentile(raws, 50), percentile(gets, 50), nil
}
