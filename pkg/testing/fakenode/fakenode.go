// Package fakenode registers nodes that run no containers. It reports their pods as Running and, when their time is
// over, as Succeeded or Failed. It serves to measure and test schedulers and controllers at sizes that no machine has.
//
// Its invariant: memory is proportional to the number of pods that run for a limited time, not to the number of
// nodes and other pods.
package fakenode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/base/count"
)

// Label is a label of fake nodes and their leases. Its value is the prefix of their names followed by "0".
const Label = "coracle.dev/fake-node"

// Annotations of a pod with restartPolicy Never or OnFailure.
const (
	// DurationAnnotation is how long the pod runs, such as 5s. Without it the pod succeeds at once.
	DurationAnnotation = "coracle.dev/fake-duration"
	// ExitCodeAnnotation is the exit code of its containers, from 0 to 255. With any other code than 0 the pod fails.
	ExitCodeAnnotation = "coracle.dev/fake-exit-code"
)

// MostNodes is the maximum number of nodes of one process.
const MostNodes = 20_000

const (
	leaseSeconds = 40
	// renewPeriod is the time in which each lease is renewed once. One missed renewal does not make a node NotReady.
	renewPeriod = 15 * time.Second
	timeout     = 30 * time.Second
	// cleanupTimeout is the time for removing nodes and pods at the end.
	cleanupTimeout = 5 * time.Minute
	// registerWorkers, renewWorkers and podWorkers are the numbers of concurrent writers.
	registerWorkers, renewWorkers, podWorkers = 16, 16, 32
)

// Config configures Nodes.
type Config struct {
	// REST reaches the cluster. Its rate limit is ignored. Required.
	REST *rest.Config
	// Count is the number of nodes, from 1 to MostNodes.
	Count int
	// Prefix precedes the number in the names of the nodes; "fake-" by default.
	Prefix string
	// CPU, Memory and Pods are the capacity of each node; 32, 256Gi and 110 by default.
	CPU, Memory resource.Quantity
	Pods        int64
	Labels      map[string]string
	Taints      []corev1.Taint
	// Progress, if not nil, is called with a sentence about each step.
	Progress func(string)
	// Log is slog.Default() if nil.
	Log *slog.Logger
}

// Validate reports invalid fields.
func (c Config) Validate() error {
	switch {
	case c.REST == nil:
		return errors.New("fake nodes: REST is required")
	case c.Count < 1 || c.Count > MostNodes:
		return fmt.Errorf("count of %d: must be from 1 to %d", c.Count, MostNodes)
	case c.Pods < 0 || c.CPU.Sign() < 0 || c.Memory.Sign() < 0:
		return errors.New("the capacity of a node must not be negative")
	}
	if len(validation.IsDNS1123Subdomain(c.Prefix+"0")) > 0 || len(validation.IsValidLabelValue(c.label())) > 0 {
		return fmt.Errorf("prefix %q: a node's name is the prefix and a number, in lower case letters, digits, '-' and "+
			"'.'; at most 63 characters", c.Prefix)
	}
	return nil
}

func (c Config) label() string { return c.Prefix + "0" }

// Nodes are the fake nodes of one process.
type Nodes struct {
	Config
	client kubernetes.Interface

	ours      []atomic.Bool // by number: registered, and not deleted since by another client
	failures  atomic.Uint64 // failed requests since the last report
	timers    timers
	tasks     chan task
	relist    chan struct{} // capacity 1
	addresses atomic.Uint32
}

// New creates Nodes.
func New(c Config) (*Nodes, error) {
	c.Prefix = cmp.Or(c.Prefix, "fake-")
	c.Pods = cmp.Or(c.Pods, 110)
	if c.CPU.IsZero() {
		c.CPU = resource.MustParse("32")
	}
	if c.Memory.IsZero() {
		c.Memory = resource.MustParse("256Gi")
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	cfg := rest.CopyConfig(c.REST)
	cfg.QPS, cfg.RateLimiter = -1, nil
	cfg.ContentType, cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf",
		"application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	n := &Nodes{
		Config: c,
		client: client,
		ours:   make([]atomic.Bool, c.Count),
		tasks:  make(chan task, podWorkers),
		relist: make(chan struct{}, 1),
	}
	n.timers.pods = map[podKey]*time.Timer{}
	return n, nil
}

// Run registers the nodes and simulates them until ctx is done. Then it deletes them and their pods.
func (n *Nodes) Run(ctx context.Context) error {
	began := time.Now()
	err := n.register(ctx)
	if err == nil {
		n.Progress(fmt.Sprintf("%s registered after %s. An interrupt (Ctrl-C) deletes them.",
			count.Of(n.Count, "node"), time.Since(began).Round(10*time.Millisecond)))
		n.play(ctx)
	}
	if ctx.Err() != nil {
		err = nil
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return errors.Join(err, n.remove(cleanup))
}

// play sends heartbeats and the status of pods until ctx is done.
func (n *Nodes) play(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer n.timers.stop()
	all.Go(func() { n.renew(ctx) })
	all.Go(func() { n.revive(ctx) })
	all.Go(func() { n.report(ctx) })
	for range podWorkers {
		all.Go(func() { n.work(ctx) })
	}
	n.follow(ctx)
}

// failed counts a failed request for the next report, and logs the first one.
func (n *Nodes) failed(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && n.failures.Add(1) == 1 {
		n.Log.Warn("request of a fake node failed", "request", what, "error", err)
	}
}

// report logs how many requests failed, at most once a minute.
func (n *Nodes) report(ctx context.Context) {
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			if failed := n.failures.Swap(0); failed > 1 {
				n.Log.Warn("requests of fake nodes failed in the last minute", "failed", failed)
			}
		}
	}
}
