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

// percentile returns a percentile by nearest rank; p is 0 to 100.
func percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	rank := int(p/100*float64(len(all)) + 0.9999999)
	return all[min(max(rank, 1), len(all))-1]
}

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

func (c *cluster) remove(ctx context.Context, name string) error {
	zero := int64(0)
	if err := c.client.CoreV1().Pods(name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero},
		metav1.ListOptions{}); err != nil {
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
	return follow(ctx, c.client.CoreV1().Namespaces().Watch, only, func(e watch.Event) bool {
		return e.Type == watch.Deleted
	})
}

const podTimeout = 2 * time.Minute

func (c *cluster) pod(name string) *corev1.Pod {
	none := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &none,
			Containers: []corev1.Container{
				{Name: "main", Image: c.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "86400"}},
			}},
	}
}

// running creates pods concurrently, and returns when each started to run. change, if not nil, modifies each pod first.
func (c *cluster) running(ctx context.Context, ns string, change func(*corev1.Pod),
	names ...string) (map[string]time.Duration, error) {
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
			return took, errors.Join(append(errs,
				fmt.Errorf("%d of %d pods run after %s%s", len(took), len(names), podTimeout, why))...)
		}
	}
	creating.Wait()
	return took, errors.Join(errs...)
}

// oneByOne runs 20 pods without and 20 with a user namespace, alternately and in sequence.
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
	return []figure{
		millis("pod create -> Running, p50", percentile(all, 50), 100),
		millis("pod create -> Running, p99", percentile(all, 99), 0),
		millis("with a user namespace, p50", percentile(own, 50), 100),
		millis("with a user namespace, p99", percentile(own, 99), 0),
	}, err
}

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
