package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// manyBytes is the size of an object of the group many.
	manyBytes = 2048
	// manyPage is how many of them a page has.
	manyPage = 500
)

// manyObjects measures what many objects cost: the memory of -pids with them, a list of all in pages, and how long others wait meanwhile. Deleting them is
// left to who deletes the cluster.
func manyObjects(ctx context.Context, c *cluster) (figures []figure, err error) {
	ns := fmt.Sprintf("bench-many-%d", time.Now().UnixNano())
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, namespace(ns), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	took, err := c.writeMaps(ctx, ns)
	if err != nil {
		return nil, err
	}
	figures = append(figures, figure{Name: fmt.Sprintf("creates of %d objects of 2 KB", c.many), Value: float64(c.many) / took.Seconds(), Unit: "/s", More: true})
	memory := func(name string, budget float64) error {
		pids, err := c.processes()
		if err != nil {
			return err
		}
		kib := 0
		for _, pid := range pids {
			n, err := rollup(pid, "Rss:")
			if err != nil {
				return err
			}
			kib += n
		}
		figures = append(figures, figure{Name: name, Value: float64(kib) / 1024, Unit: "MiB", Budget: budget})
		return nil
	}
	if err := memory("memory with them (RSS)", 0); err != nil {
		return figures, err
	}
	listing, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	var gets []time.Duration
	var failed error
	others.Go(func() { // the only writer of gets and failed until it ends
		for listing.Err() == nil && failed == nil {
			began := time.Now()
			_, failed = c.client.CoreV1().ConfigMaps(ns).Get(ctx, "m1", metav1.GetOptions{})
			gets = append(gets, time.Since(began))
		}
	})
	began := time.Now()
	n, err := c.pages(ctx, ns)
	took = time.Since(began)
	stop()
	others.Wait()
	if err = errors.Join(err, failed); err != nil {
		return figures, err
	}
	if n != c.many {
		return figures, fmt.Errorf("the pages have %d objects instead of %d", n, c.many)
	}
	figures = append(figures, millis(fmt.Sprintf("list of them in pages of %d", manyPage), took, 0),
		millis("  a get meanwhile, p50", percentile(gets, 50), 0), millis("  p99", percentile(gets, 99), 0), millis("  the longest", percentile(gets, 100), 10))
	budget := 0.0
	if c.many == 100000 {
		budget = 600
	}
	return figures, memory("memory after the list (RSS)", budget)
}

func (c *cluster) writeMaps(ctx context.Context, ns string) (time.Duration, error) {
	clients, err := c.clients(min(c.writers, 8))
	if err != nil {
		return 0, err
	}
	var next atomic.Int64
	errs := make([]error, c.writers)
	var writing sync.WaitGroup
	began := time.Now()
	for w := range c.writers {
		maps := clients[w%len(clients)].CoreV1().ConfigMaps(ns)
		writing.Go(func() {
			for i := next.Add(1); i <= int64(c.many) && errs[w] == nil; i = next.Add(1) {
				name := "m" + strconv.FormatInt(i, 10)
				_, errs[w] = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
					Data: map[string]string{"value": name + strings.Repeat("x", manyBytes-len(name))}}, metav1.CreateOptions{})
			}
		})
	}
	writing.Wait()
	return time.Since(began), errors.Join(errs...)
}

// pages lists a namespace's ConfigMaps in pages, and returns how many of those there are.
func (c *cluster) pages(ctx context.Context, ns string) (n int, err error) {
	o := metav1.ListOptions{Limit: manyPage}
	for {
		list, err := c.client.CoreV1().ConfigMaps(ns).List(ctx, o)
		if err != nil {
			return n, err
		}
		for i := range list.Items {
			if strings.HasPrefix(list.Items[i].Name, "m") {
				n++
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return n, nil
		}
	}
}
