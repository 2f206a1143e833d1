package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// benchLabel is a label of the fake nodes; its value is the namespace that they are for.
const benchLabel = "coracle.dev/bench"

// scheduling measures how many pods per second are created and bound to many fake nodes.
func scheduling(ctx context.Context, c *cluster) (figures []figure, err error) {
	err = c.within(ctx, func(ns string) (err error) {
		defer func() { err = errors.Join(err, c.removeNodes(context.WithoutCancel(ctx), ns)) }()
		if err := c.makeNodes(ctx, ns); err != nil {
			return err
		}
		took, err := c.bound(ctx, ns)
		if err != nil {
			return err
		}
		f := figure{
			Name:  fmt.Sprintf("pods created and bound onto %d nodes", c.nodes),
			Value: float64(c.binds) / took.Seconds(),
			Unit:  "/s",
			More:  true,
		}
		if c.nodes == 1000 && c.binds == 5000 {
			f.Budget = 2000
		}
		figures = append(figures, f)
		return nil
	})
	return figures, err
}

func (c *cluster) each(n int, f func(i int) error) error {
	return inParallel(c.writers, n, func(_, i int) error { return f(i) })
}

// makeNodes creates the nodes and waits until they are schedulable: the API server taints a new node.
func (c *cluster) makeNodes(ctx context.Context, ns string) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	nodes := c.client.CoreV1().Nodes()
	w, err := nodes.Watch(ctx, metav1.ListOptions{LabelSelector: benchLabel + "=" + ns})
	if err != nil {
		return err
	}
	defer w.Stop()
	room := corev1.ResourceList{
		"cpu":    resource.MustParse("32"),
		"memory": resource.MustParse("64Gi"),
		"pods":   resource.MustParse("110"),
	}
	making := make(chan error, 1)
	go func() {
		making <- c.each(c.nodes, func(i int) error {
			_, err := nodes.Create(ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: ns + "-" + strconv.Itoa(i), Labels: map[string]string{benchLabel: ns}},
				Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{
					Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Bench", LastHeartbeatTime: metav1.Now(),
					LastTransitionTime: metav1.Now()}}},
			}, metav1.CreateOptions{})
			return err
		})
	}()
	ready := map[string]bool{}
	for len(ready) < c.nodes {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return errors.New("the watch of the nodes ended")
			}
			if n, ok := e.Object.(*corev1.Node); ok {
				if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
					return t.Effect != corev1.TaintEffectPreferNoSchedule
				}) {
					delete(ready, n.Name)
				} else {
					ready[n.Name] = true
				}
			}
		case err := <-making:
			if err != nil {
				return err
			}
			making = nil
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes take pods: %w", len(ready), c.nodes, ctx.Err())
		}
	}
	if making != nil {
		return <-making
	}
	return nil
}

func (c *cluster) removeNodes(ctx context.Context, ns string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	return c.client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: benchLabel + "=" + ns})
}

// bound creates pods that may run only on the namespace's nodes, and returns when all are bound.
func (c *cluster) bound(ctx context.Context, ns string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	clients, err := c.clients(min(c.writers, 8))
	if err != nil {
		return 0, err
	}
	w, err := c.client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	began := time.Now()
	creating := make(chan error, 1)
	go func() {
		creating <- c.each(c.binds, func(i int) error {
			p := c.pod("bind-" + strconv.Itoa(i))
			p.Spec.NodeSelector = map[string]string{benchLabel: ns}
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi"),
			}
			_, err := clients[i%len(clients)].CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{})
			return err
		})
	}()
	there := make(map[string]bool, c.binds)
	for len(there) < c.binds {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return 0, errors.New("the watch of the pods ended")
			}
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted && p.Spec.NodeName != "" {
				there[p.Name] = true
			}
		case err := <-creating:
			if err != nil {
				return 0, err
			}
			creating = nil
		case <-ctx.Done():
			return 0, fmt.Errorf("%d of %d pods are bound: %w", len(there), c.binds, ctx.Err())
		}
	}
	return time.Since(began), nil
}
