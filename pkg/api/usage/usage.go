// Package usage computes the CPU and memory usage of nodes and containers, like metrics-server, from two readings of
// each node's counters. Its invariants: it reads a node only on request and at most every 15 seconds, and a node's
// readings count only for pods that are bound to it.
package usage

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	// resolution is the minimum time between two readings of a node, once there are two.
	resolution = 15 * time.Second
	// stale is the age at which a reading is discarded. Two new readings are then made, glance apart.
	stale = time.Minute
	// glance is the time between the two readings of a node that has none, or only stale ones.
	glance      = time.Second
	readTimeout = 5 * time.Second
	// readers is the maximum number of nodes read concurrently.
	readers = 32
	// maxNodes is the maximum number of nodes whose readings are kept.
	maxNodes = 16 << 10
	// forget is the time after which the readings of a node without requests, such as a deleted node, are dropped.
	forget = 10 * time.Minute
)

// Reader reads a node's /metrics/resource. It must limit the size of the response.
type Reader func(ctx context.Context, node string) ([]byte, error)

// Collector keeps the latest two readings of each requested node.
type Collector struct {
	read Reader
	log  *slog.Logger

	mu     sync.Mutex
	nodes  map[string]*state
	pruned time.Time // when forgotten nodes were last dropped
}

// New creates a Collector.
func New(read Reader, log *slog.Logger) *Collector {
	return &Collector{read: read, log: log, nodes: map[string]*state{}}
}

type state struct {
	turn      chan struct{} // holds a token while a goroutine reads the node
	mu        sync.Mutex    // guards the fields below
	was, is   *Reading
	at, tried time.Time // the times of is and of the last attempt
}

func (c *Collector) state(node string) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.pruned) > stale {
		c.pruned = now
		maps.DeleteFunc(c.nodes, func(_ string, s *state) bool { return s.forgotten(now) })
	}
	s := c.nodes[node]
	if s == nil {
		if len(c.nodes) >= maxNodes {
			clear(c.nodes)
		}
		s = &state{turn: make(chan struct{}, 1)}
		c.nodes[node] = s
	}
	return s
}

// forgotten reports whether the last attempt to read the node is longer ago than forget.
func (s *state) forgotten(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.tried.IsZero() && now.Sub(s.tried) > forget
}

// pair returns the latest two readings. Either may be nil.
func (s *state) pair(now time.Time) (was, is *Reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.at) > stale {
		return nil, nil
	}
	return s.was, s.is
}

// fresh reports whether the node need not be read now.
func (s *state) fresh(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.was != nil && now.Sub(s.at) < resolution ||
		now.Sub(s.tried) < resolution && (s.is == nil || now.Sub(s.at) > resolution)
}

// refresh reads all nodes without a fresh reading. It returns when each has responded or failed, or ctx is done.
func (c *Collector) refresh(ctx context.Context, nodes []string) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, readers)
	for _, name := range nodes {
		s := c.state(name)
		if s.fresh(time.Now()) {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			wg.Wait()
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := c.update(ctx, name, s); err != nil && ctx.Err() == nil {
				c.log.Warn("could not read node usage", "node", name, "error", err)
			}
		})
	}
	wg.Wait()
}

// update reads one node, unless another goroutine just did.
func (c *Collector) update(ctx context.Context, name string, s *state) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if s.fresh(time.Now()) {
		return nil
	}
	is, err := c.once(ctx, name)
	s.mu.Lock()
	s.tried = time.Now()
	was, age := s.is, s.tried.Sub(s.at)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if was == nil || age > stale {
		was = is
		t := time.NewTimer(glance)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if is, err = c.once(ctx, name); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.was, s.is, s.at = was, is, time.Now()
	return nil
}

func (c *Collector) once(ctx context.Context, name string) (*Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	text, err := c.read(ctx, name)
	if err != nil {
		return nil, err
	}
	return Parse(text, time.Now())
}

// Nodes returns the usage of the nodes that have two readings.
func (c *Collector) Nodes(ctx context.Context, nodes []*corev1.Node) []*metrics.NodeMetrics {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	c.refresh(ctx, names)
	now := time.Now()
	var out []*metrics.NodeMetrics
	for _, n := range nodes {
		was, is := c.state(n.Name).pair(now)
		if was == nil {
			continue
		}
		usage, window, ok := between(was.Node, is.Node)
		if !ok {
			continue
		}
		out = append(out, &metrics.NodeMetrics{
			TypeMeta:   metav1.TypeMeta{Kind: "NodeMetrics", APIVersion: metrics.SchemeGroupVersion.String()},
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.NewTime(now)},
			Timestamp:  metav1.NewTime(is.Node.At), Window: metav1.Duration{Duration: window}, Usage: usage,
		})
	}
	return out
}

// Pods returns the usage of the pods all of whose running containers have two readings.
func (c *Collector) Pods(ctx context.Context, pods []*corev1.Pod) []*metrics.PodMetrics {
	seen := map[string]bool{}
	var names []string
	for _, p := range pods {
		if n := p.Spec.NodeName; n != "" && !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	c.refresh(ctx, names)
	now := time.Now()
	pairs := map[string][2]*Reading{}
	for _, n := range names {
		was, is := c.state(n).pair(now)
		pairs[n] = [2]*Reading{was, is}
	}
	var out []*metrics.PodMetrics
	for _, p := range pods {
		if pair := pairs[p.Spec.NodeName]; pair[0] != nil {
			if m := podMetrics(p, pair[0], pair[1], now); m != nil {
				out = append(out, m)
			}
		}
	}
	return out
}

func podMetrics(p *corev1.Pod, was, is *Reading, now time.Time) *metrics.PodMetrics {
	m := &metrics.PodMetrics{
		TypeMeta: metav1.TypeMeta{Kind: "PodMetrics", APIVersion: metrics.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{
			Name:              p.Name,
			Namespace:         p.Namespace,
			Labels:            p.Labels,
			CreationTimestamp: metav1.NewTime(now),
		},
	}
	add := func(name string) bool {
		key := container{p.Namespace, p.Name, name}
		last, ok := is.Containers[key]
		if !ok {
			return true // not running
		}
		first, ok := was.Containers[key]
		if started := last.Started; !ok && !started.IsZero() && last.At.Sub(started) >= glance &&
			last.At.Sub(started) < stale {
			first, ok = Sample{At: started, Started: started}, true // at its start, the usage was zero
		}
		if !ok || !first.Started.Equal(last.Started) {
			return false
		}
		usage, window, ok := between(first, last)
		if !ok {
			return false
		}
		m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: name, Usage: usage})
		if m.Timestamp.IsZero() || last.At.Before(m.Timestamp.Time) {
			m.Timestamp, m.Window = metav1.NewTime(last.At), metav1.Duration{Duration: window}
		}
		return true
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways && !add(c.Name) {
			return nil
		}
	}
	for i := range p.Spec.Containers {
		if !add(p.Spec.Containers[i].Name) {
			return nil
		}
	}
	if len(m.Containers) == 0 {
		return nil
	}
	return m
}

// between returns the average CPU usage between two samples and the memory of the second. It returns false if the
// values are implausible: no time passed, the CPU counter decreased, or the usage exceeds maxCores.
func between(was, is Sample) (corev1.ResourceList, time.Duration, bool) {
	window := is.At.Sub(was.At)
	if window <= 0 || is.CPU < was.CPU || is.Memory < 0 {
		return nil, 0, false
	}
	cores := (is.CPU - was.CPU) / window.Seconds()
	if cores > maxCores {
		return nil, 0, false
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(cores*1e9), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(is.Memory), resource.BinarySI),
	}, window, true
}

// maxCores is more than any machine has.
const maxCores = 1 << 20
