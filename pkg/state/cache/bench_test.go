package cache

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// realistic is a pod of about 3 KB.
func realistic(name string, node int) *corev1.Pod {
	return pod("default", name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web", "pod-template-hash": "abcdef"}
		p.Spec.NodeName = fmt.Sprintf("node-%d", node)
		for i := range 4 {
			c := corev1.Container{
				Name:    fmt.Sprintf("c%d", i),
				Image:   "registry.example/team/app:v1",
				Command: []string{"/bin/app", "--serve"},
			}
			for j := range 6 {
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: "a value of some length"})
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
				Name:        c.Name,
				Image:       c.Image,
				ContainerID: "containerd://0123456789abcdef0123456789abcdef",
			})
		}
		p.Status.Phase = corev1.PodRunning
	})
}

func filled(b testing.TB, n int) (*Cache, *fakeSource) {
	m := newMemory()
	for i := range n {
		m.write(b, realistic(fmt.Sprintf("p-%06d", i), i%100), false)
	}
	c, err := New(Config{Kinds: kind.NewCatalog(testTable), Source: m})
	require.NoError(b, err)
	require.NoError(b, c.load(b.Context()))
	return c, m
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{1000, 20000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, m := filled(b, n)
			for b.Loop() {
				c, _ := New(Config{Kinds: kind.NewCatalog(testTable), Source: m})
				_ = c.load(b.Context())
			}
		})
	}
}

func BenchmarkList3000(b *testing.B) {
	c, _ := filled(b, 3000)
	b.Run("pointers", func(b *testing.B) {
		for b.Loop() {
			c.List(pods, Query{})
		}
	})
	b.Run("byNode", func(b *testing.B) {
		q := Query{Fields: fields.ParseSelectorOrDie("spec.nodeName=node-7")}
		for b.Loop() {
			c.List(pods, q)
		}
	})
	b.Run("encoded", func(b *testing.B) {
		for b.Loop() {
			entries, _ := c.List(pods, Query{})
			for _, e := range entries {
				_, _ = e.JSONItem(nil)
			}
		}
	})
	b.Run("firstEncoding", func(b *testing.B) {
		for b.Loop() {
			entries, _ := c.List(pods, Query{})
			for _, e := range entries {
				e.kept[encodingJSON].Store(nil)
				_, _ = e.JSONItem(nil)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	c, _ := filled(b, 3000)
	for b.Loop() {
		c.Get(pods, "default", "p-001234")
	}
}

func BenchmarkApply(b *testing.B) {
	c, m := filled(b, 3000)
	p, err := pods.Encode(realistic("p-001234", 1))
	require.NoError(b, err)
	for b.Loop() {
		m.rev++
		kv := kind.KV{Key: pods.Key("default", "p-001234"), Value: p, Revision: m.rev}
		c.applyBatch(kind.Batch{Events: []kind.Change{{KV: kv}}, Revision: m.rev})
	}
}

// BenchmarkVisible measures the time from a write until a waiting reader sees it, including the store.
func BenchmarkVisible(b *testing.B) {
	s := openStore(b)
	c := openCache(b, Config{Source: s})
	value, err := pods.Encode(realistic("p", 1))
	require.NoError(b, err)
	var put, see time.Duration
	n := 0
	for b.Loop() {
		n++
		began := time.Now()
		rev, err := s.Create(b.Context(), pods.Key("default", fmt.Sprintf("p-%08d", n)), value, 0)
		require.NoError(b, err)
		put += time.Since(began)
		began = time.Now()
		require.NoError(b, c.WaitFor(b.Context(), rev))
		see += time.Since(began)
	}
	b.ReportMetric(float64(put.Microseconds())/float64(n), "put-us")
	b.ReportMetric(float64(see.Microseconds())/float64(n), "wait-us")
}

// BenchmarkFanOut measures the time until the last of 1,000 watchers has a change with its encoding.
func BenchmarkFanOut(b *testing.B) {
	for name, query := range map[string]func(int) Query{
		"all": func(int) Query { return Query{} },
		"oneEach": func(i int) Query {
			return Query{Fields: fields.ParseSelectorOrDie(fmt.Sprintf("spec.nodeName=node-%d", i))}
		},
	} {
		b.Run(name, func(b *testing.B) {
			c, m := filled(b, 3000)
			const watchers = 1000
			got := make(chan time.Time, watchers)
			var wg sync.WaitGroup
			var all []*Watcher
			for i := range watchers {
				w, _, _, err := c.Watch(pods, query(i), m.rev)
				require.NoError(b, err)
				all = append(all, w)
				wg.Go(func() {
					for {
						events, err := w.Next(b.Context())
						if err != nil {
							return
						}
						for _, ev := range events {
							ev.Entry.JSON()
							got <- time.Now()
						}
					}
				})
			}
			expect := watchers
			if name == "oneEach" {
				expect = 1
			}
			value, err := pods.Encode(realistic("p-000001", 1))
			require.NoError(b, err)
			var took []time.Duration
			for b.Loop() {
				runtime.Gosched()
				m.rev++
				began := time.Now()
				kv := kind.KV{Key: pods.Key("default", "p-000001"), Value: value, Revision: m.rev}
				c.applyBatch(kind.Batch{Events: []kind.Change{{KV: kv}}, Revision: m.rev})
				var last time.Time
				for range expect {
					if at := <-got; at.After(last) {
						last = at
					}
				}
				took = append(took, last.Sub(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			for _, w := range all {
				w.Close()
			}
			wg.Wait()
		})
	}
}
