package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/test/history"
)

const (
	crowdNamespace = "crowd"
	crowdWriters   = 4
	keysEach       = 6
)

var colors = []string{"red", "blue"}

// crowd is the writers and clients of one API server. It records their operations and observations as a history.
type crowd struct {
	t    *testing.T
	rest func() *rest.Config
	gate gate
	// acknowledged is the greatest revision in a response to a writer.
	acknowledged atomic.Int64
	// expired, cuts and exact count what the run has covered: 410 answers, streams that a client ended, and lists
	// of an exact revision.
	expired, cuts, exact atomic.Int64

	mu      sync.Mutex
	h       history.History
	written int
	told    int64         // the last revision that the witness received
	known   int64         // the last revision of Truth, if it is recorded
	moved   chan struct{} // closed and replaced when written or told changes
}

func newCrowd(t *testing.T, config func() *rest.Config) *crowd {
	c := &crowd{
		t:     t,
		rest:  config,
		moved: make(chan struct{}),
		h:     history.History{Writes: map[string][]history.Op{}, Truth: map[int64]history.Change{}},
	}
	c.gate.up = make(chan struct{})
	close(c.gate.up)
	_, err := c.client().CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crowdNamespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return c
}

func (c *crowd) client() kubernetes.Interface {
	api, err := kubernetes.NewForConfig(c.rest()) // rest() sets a new dialer, which prevents a shared transport
	require.NoError(c.t, err)
	return api
}

// gate holds clients back while the server is down. generation is the number of times that it went down.
type gate struct {
	mu         sync.Mutex
	up         chan struct{}
	generation int
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.up, g.generation = make(chan struct{}), g.generation+1
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.up)
}

// pass waits until the server is up and returns the generation.
func (g *gate) pass(ctx context.Context) int {
	for {
		g.mu.Lock()
		up, generation := g.up, g.generation
		g.mu.Unlock()
		select {
		case <-up:
			return generation
		case <-ctx.Done():
			return -1
		}
	}
}

// failed reports an error, unless the server was killed meanwhile or the test is over.
func (c *crowd) failed(ctx context.Context, generation int, what string, err error) {
	c.gate.mu.Lock()
	now := c.gate.generation
	c.gate.mu.Unlock()
	if ctx.Err() == nil && now == generation {
		c.t.Errorf("%s: %v", what, err)
	}
}

// note changes the record and wakes the goroutines in until.
func (c *crowd) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.moved)
	c.moved = make(chan struct{})
}

// until waits until a condition on the record holds.
func (c *crowd) until(ctx context.Context, holds func() bool) bool {
	for {
		c.mu.Lock()
		ok, moved := holds(), c.moved
		c.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}

// writes waits for n more writes.
func (c *crowd) writes(ctx context.Context, n int) bool {
	c.mu.Lock()
	from := c.written
	c.mu.Unlock()
	return c.until(ctx, func() bool { return c.written >= from+n })
}

// write changes the keys of one writer until all writers together have made enough writes.
func (c *crowd) write(ctx context.Context, writer, enough int) {
	maps := c.client().CoreV1().ConfigMaps(crowdNamespace)
	have := make([]*corev1.ConfigMap, keysEach) // nil: deleted
	names := make([]string, keysEach)
	for n := 0; ; n++ {
		generation := c.gate.pass(ctx)
		c.mu.Lock()
		over := c.written >= enough
		c.mu.Unlock()
		if over || ctx.Err() != nil {
			return
		}
		i := rand.IntN(keysEach)
		if names[i] == "" {
			names[i] = fmt.Sprintf("w%d-%d-%d", writer, i, n)
		}
		op, object := history.Op{
			State: history.State{ID: fmt.Sprintf("w%d-%d", writer, n), Color: colors[rand.IntN(len(colors))]},
		}, have[i]
		var err error
		switch {
		case object == nil:
			object, err = maps.Create(ctx, configMap(names[i], op.State), metav1.CreateOptions{})
		case rand.IntN(4) == 0:
			op.State, object = history.State{}, nil
			err = maps.Delete(ctx, names[i], metav1.DeleteOptions{})
		default:
			next := configMap(names[i], op.State)
			next.ResourceVersion = object.ResourceVersion
			object, err = maps.Update(ctx, next, metav1.UpdateOptions{})
		}
		op.Acknowledged = err == nil
		if err == nil && object != nil {
			op.Revision = revision(object.ResourceVersion)
			raise(&c.acknowledged, op.Revision)
		}
		name := names[i]
		have[i] = object
		c.note(func() {
			c.h.Writes[name] = append(c.h.Writes[name], op)
			c.written++
		})
		if err != nil { // the write may have happened, so no later one may use this key
			names[i], have[i] = "", nil
			c.failed(ctx, generation, "write of "+name, err)
		}
	}
}

func configMap(name string, s history.State) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"color": s.Color}},
		Data:       map[string]string{"id": s.ID},
	}
}

func stateOf(m *corev1.ConfigMap) history.State {
	return history.State{ID: m.Data["id"], Color: m.Labels["color"]}
}

func revision(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err) // the server's
	}
	return n
}

func raise(v *atomic.Int64, to int64) {
	for old := v.Load(); to > old && !v.CompareAndSwap(old, to); old = v.Load() {
	}
}
