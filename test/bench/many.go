package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

const (
	// manyBytes is the size of an object of the group many.
	manyBytes = 2048
	manyPage  = 500
	// manyGets is the number of gets measured without a concurrent list.
	manyGets = 3000
)

// manyBudgets are the limits of resident memory, in MB, by the number of objects.
var manyBudgets = map[int]float64{100_000: 600, 1_000_000: 5000}

// manyObjects measures the cost of many objects: the memory of -pids, a list of all in pages, and how long other
// requests wait meanwhile. It does not delete the objects; a later run can list them with -listed.
func manyObjects(ctx context.Context, c *cluster) (figures []figure, err error) {
	ns := fmt.Sprintf("bench-many-%d", time.Now().UnixNano())
	if c.listed != "" {
		ns = c.listed
	} else {
		if _, err := c.client.CoreV1().Namespaces().Create(ctx, namespace(ns), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		before, _ := c.spent()
		took, err := c.writeMaps(ctx, ns)
		if err != nil {
			return nil, err
		}
		after, _ := c.spent()
		figures = append(figures, figure{
			Name: fmt.Sprintf("creates of %d objects of 2 KB", c.many), Value: float64(c.many) / took.Seconds(), Unit: "/s",
			More: true,
			Note: "in " + ns + ", " + spentNote(after-before),
		})
	}
	f, err := c.resident("memory with them (RSS)")
	if err != nil {
		return figures, err
	}
	figures = append(figures, f)

	others, err := c.clients(1) // a separate connection, as another client has
	if err != nil {
		return figures, err
	}
	alone := &gets{client: others[0], ns: ns}
	for len(alone.took) < manyGets && alone.err == nil {
		alone.one(ctx)
	}
	beside := &gets{client: others[0], ns: ns}
	listing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for listing.Err() == nil && beside.err == nil {
			beside.one(ctx)
		}
	})
	before, _ := c.spent()
	began := time.Now()
	n, pages, err := c.pages(ctx, ns)
	took := time.Since(began)
	stop()
	running.Wait()
	after, _ := c.spent()
	if err = errors.Join(err, alone.err, beside.err); err != nil {
		return figures, err
	}
	if n != c.many {
		return figures, fmt.Errorf("the pages have %d objects instead of %d", n, c.many)
	}
	list := millis(fmt.Sprintf("list of them in pages of %d", manyPage), took, 0)
	list.Note = fmt.Sprintf("with %d gets, %s", len(beside.took), spentNote(after-before))
	figures = append(figures, list, millis("  a page, p50", percentile(pages, 50), 0),
		millis("  p99", percentile(pages, 99), 0), millis("  the longest", percentile(pages, 100), 0),
		millis("  a get before, p50", percentile(alone.took, 50), 0), millis("  p99", percentile(alone.took, 99), 0),
		millis("  the longest", percentile(alone.took, 100), 0),
		millis("  a get meanwhile, p50", percentile(beside.took, 50), 0), millis("  p99", percentile(beside.took, 99), 10),
		millis("  the longest", percentile(beside.took, 100), 10))
	if f, err = c.resident("memory after the list (RSS)"); err != nil {
		return figures, err
	}
	f.Budget = manyBudgets[c.many]
	return append(figures, f), nil
}

func spentNote(d time.Duration) string { return fmt.Sprintf("%.1f s of processor time", d.Seconds()) }

// gets are the durations of sequential gets of one object.
type gets struct {
	client kubernetes.Interface
	ns     string
	took   []time.Duration
	err    error
}

func (g *gets) one(ctx context.Context) {
	began := time.Now()
	_, g.err = g.client.CoreV1().ConfigMaps(g.ns).Get(ctx, "m1", metav1.GetOptions{})
	g.took = append(g.took, time.Since(began))
}

// resident returns the resident memory of -pids in MB, and notes how much of it is anonymous; the rest is file pages.
func (c *cluster) resident(name string) (f figure, err error) {
	pids, err := c.processes()
	if err != nil {
		return f, err
	}
	var all, anonymous int
	for _, pid := range pids {
		rss, err := rollup(pid, "Rss:")
		if err != nil {
			return f, err
		}
		anon, err := rollup(pid, "Anonymous:")
		if err != nil {
			return f, err
		}
		all, anonymous = all+rss, anonymous+anon
	}
	mb := func(kib int) float64 { return float64(kib) * 1024 / 1e6 }
	return figure{
		Name:  name,
		Value: mb(all),
		Unit:  "MB",
		Note:  fmt.Sprintf("%.0f MB anonymous, %.0f MB of files", mb(anonymous), mb(all-anonymous)),
	}, nil
}

func (c *cluster) writeMaps(ctx context.Context, ns string) (time.Duration, error) {
	clients, err := c.clients(min(c.writers, 8))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = inParallel(c.writers, c.many, func(w, i int) error {
		name := "m" + strconv.Itoa(i)
		_, err := clients[w%len(clients)].CoreV1().ConfigMaps(ns).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
				Data: map[string]string{"value": name + strings.Repeat("x", manyBytes-len(name))}}, metav1.CreateOptions{})
		return err
	})
	return time.Since(began), err
}

// pages lists a namespace's ConfigMaps in pages, and returns their number and how long each page took. It does not
// decode pages, because client and cluster share the processors.
func (c *cluster) pages(ctx context.Context, ns string) (n int, took []time.Duration, err error) {
	for next := ""; ; {
		began := time.Now()
		raw, err := c.client.CoreV1().RESTClient().Get().Namespace(ns).Resource("configmaps").
			Param("limit", strconv.Itoa(manyPage)).Param("continue", next).Do(ctx).Raw()
		if err != nil {
			return n, took, err
		}
		took = append(took, time.Since(began))
		items, after, err := readPage(raw)
		if err != nil {
			return n, took, err
		}
		n += items
		if next = after; next == "" {
			return n, took, nil
		}
	}
}

// readPage counts the test's objects in a Kubernetes list in protobuf: ListMeta is field 1 and items are field 2 of
// the list; metadata is field 1 of an item.
func readPage(raw []byte) (n int, next string, err error) {
	raw, ok := bytes.CutPrefix(raw, []byte("k8s\x00"))
	if !ok {
		return 0, "", errors.New("the list is not in protobuf")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(raw); err != nil {
		return 0, "", err
	}
	for rest := envelope.Raw; len(rest) > 0; {
		field, _, head := protowire.ConsumeTag(rest)
		if head < 0 {
			return n, next, protowire.ParseError(head)
		}
		value, size := protowire.ConsumeBytes(rest[head:])
		if size < 0 {
			return n, next, protowire.ParseError(size)
		}
		rest = rest[head+size:]
		switch field {
		case 1:
			var meta metav1.ListMeta
			if err := meta.Unmarshal(value); err != nil {
				return n, next, err
			}
			next = meta.Continue
		case 2:
			if len(value) > manyBytes { // kube-root-ca.crt is smaller
				n++
			}
		}
	}
	return n, next, nil
}
