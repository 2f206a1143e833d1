package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

func newDialer() *net.Dialer { return &net.Dialer{Timeout: 10 * time.Second} }

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// percentile of durations by nearest rank; p is 0 to 100.
func percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	rank := int(p/100*float64(len(all)) + 0.9999999)
	return all[min(max(rank, 1), len(all))-1]
}

// startCluster runs the command and waits until a node is Ready.
func startCluster(ctx context.Context, o options) (time.Duration, error) {
	began := time.Now()
	if out, err := exec.CommandContext(ctx, "sh", "-c", o.start).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", o.start, err, out)
	}
	c, err := connect(o)
	if err != nil {
		return 0, err
	}
	err = follow(ctx, c.client.CoreV1().Nodes().Watch, metav1.ListOptions{}, func(e watch.Event) bool {
		n, ok := e.Object.(*corev1.Node)
		if !ok {
			return false
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
	return time.Since(began), err
}

// remove deletes a namespace and waits until it has been deleted.
func (c *cluster) remove(ctx context.Context, name string) error {
	zero := int64(0)
	if err := c.client.CoreV1().Pods(name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}); err != nil {
		return err
	}
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	list, err := c.client.CoreV1().Namespaces().List(ctx, only)
	if err != nil {
		return err
	}
	if err := c.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	only.ResourceVersion = list.ResourceVersion
	return follow(ctx, c.client.CoreV1().Namespaces().Watch, only, func(e watch.Event) bool { return e.Type == watch.Deleted })
}

// podTimeout is the timeout for pods to run.
const podTimeout = 2 * time.Minute

// pod returns a pod that runs until it is deleted.
func (c *cluster) pod(name string) *corev1.Pod {
	none := int64(0)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &none,
		Containers: []corev1.Container{{Name: "main", Image: c.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "86400"}}}}}
}

// running creates pods, all at once, and returns when each one started to run. change, if not nil, changes each before.
func (c *cluster) running(ctx context.Context, ns string, change func(*corev1.Pod), names ...string) (map[string]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	list, err := c.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	w, err := c.client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	began := time.Now()
	errs := make([]error, len(names))
	var creating sync.WaitGroup
	for i, name := range names {
		creating.Go(func() {
			p := c.pod(name)
			if change != nil {
				change(p)
			}
			_, errs[i] = c.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{})
		})
	}
	took, why := map[string]time.Duration{}, ""
	for len(took) < len(names) {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return took, errors.New("the watch ended")
			}
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			for _, s := range p.Status.ContainerStatuses {
				if s.State.Waiting != nil && s.State.Waiting.Message != "" {
					why = fmt.Sprintf(": %s: %s", p.Name, s.State.Waiting.Message)
				}
			}
			if _, seen := took[p.Name]; !seen && p.Status.Phase == corev1.PodRunning {
				took[p.Name] = time.Since(began)
			}
		case <-ctx.Done():
			creating.Wait()
			return took, errors.Join(append(errs, fmt.Errorf("%d of %d pods run after %s%s", len(took), len(names), podTimeout, why))...)
		}
	}
	creating.Wait()
	return took, errors.Join(errs...)
}

// oneByOne runs 20 pods, and 20 with a user namespace, one after the other, in turn.
func oneByOne(ctx context.Context, c *cluster) (figures []figure, err error) {
	var all, own []time.Duration
	err = c.within(ctx, func(ns string) error {
		for i := range 42 {
			name, of, change := "one-"+strconv.Itoa(i), &all, (func(*corev1.Pod))(nil)
			if i%2 == 1 {
				of, change = &own, func(p *corev1.Pod) { p.Spec.HostUsers = new(false) }
			}
			took, err := c.running(ctx, ns, change, name)
			if err != nil {
				return err
			}
			if i > 1 { // the first ones warm up
				*of = append(*of, took[name])
			}
			list, err := c.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			zero := int64(0)
			if err := c.client.CoreV1().Pods(ns).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
				return err
			}
			err = follow(ctx, c.client.CoreV1().Pods(ns).Watch, metav1.ListOptions{ResourceVersion: list.ResourceVersion},
				func(e watch.Event) bool { return e.Type == watch.Deleted })
			if err != nil {
				return err
			}
		}
		return nil
	})
	if len(own) == 0 {
		return nil, err
	}
	return []figure{millis("pod create -> Running, p50", percentile(all, 50), 100), millis("pod create -> Running, p99", percentile(all, 99), 0),
		millis("with a user namespace, p50", percentile(own, 50), 100), millis("with a user namespace, p99", percentile(own, 99), 0)}, err
}

// burst runs many pods at once.
func burst(ctx context.Context, c *cluster) (figures []figure, err error) {
	err = c.within(ctx, func(ns string) error {
		var names []string
		for i := range c.pods {
			names = append(names, "burst-"+strconv.Itoa(i))
		}
		took, err := c.running(ctx, ns, nil, names...)
		if err != nil {
			return err
		}
		var last time.Duration
		for _, d := range took {
			last = max(last, d)
		}
		budget := 0.0
		if c.pods == 30 {
			budget = 1500
		}
		figures = append(figures, millis(fmt.Sprintf("%d pods at once, all Running", c.pods), last, budget))
		return nil
	})
	return figures, err
}

// idlePod returns a pod that no scheduler handles.
func (c *cluster) idlePod(name string) *corev1.Pod {
	p := c.pod(name)
	p.Labels = map[string]string{"app": "bench", "tier": "none"}
	p.Spec.SchedulerName = "bench-nobody"
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "some value"}, {Name: "B", Value: "another value"}}
	return p
}

// writeMany creates n pods with the given number of writers.
func (c *cluster) writeMany(ctx context.Context, ns, prefix string, n, writers int) (time.Duration, error) {
	clients, err := c.clients(min(writers, 8))
	if err != nil {
		return 0, err
	}
	for _, client := range clients { // connect before measuring
		if _, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); err != nil {
			return 0, err
		}
	}
	var next atomic.Int64
	errs := make([]error, writers)
	var writing sync.WaitGroup
	began := time.Now()
	for w := range writers {
		pods := clients[w%len(clients)].CoreV1().Pods(ns)
		writing.Go(func() {
			for i := next.Add(1); i <= int64(n) && errs[w] == nil; i = next.Add(1) {
				_, errs[w] = pods.Create(ctx, c.idlePod(prefix+strconv.FormatInt(i, 10)), metav1.CreateOptions{})
			}
		})
	}
	writing.Wait()
	return time.Since(began), errors.Join(errs...)
}

// objects measures the API alone, with pods that are not run.
func objects(ctx context.Context, c *cluster) (figures []figure, err error) {
	rate := func(name string, n int, d time.Duration, budget float64) {
		figures = append(figures, figure{Name: name, Value: float64(n) / d.Seconds(), Unit: "/s", Budget: budget, More: true})
	}
	err = c.within(ctx, func(ns string) error {
		single := min(c.objects, 1000)
		took, err := c.writeMany(ctx, ns, "single-", single, 1)
		if err != nil {
			return err
		}
		rate("pod creates, 1 writer", single, took, 1500)
		return nil
	})
	if err != nil {
		return figures, err
	}
	return figures, c.within(ctx, func(ns string) error {
		took, err := c.writeMany(ctx, ns, "many-", c.objects, c.writers)
		if err != nil {
			return err
		}
		budget := 0.0
		if c.writers == 32 {
			budget = 5000
		}
		rate(fmt.Sprintf("pod creates, %d writers", c.writers), c.objects, took, budget)
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

// reads measures a list, decoded and as bytes, and a get: the median of several.
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
