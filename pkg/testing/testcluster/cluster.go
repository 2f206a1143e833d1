package testcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/testing/fakenode"
)

// Cluster is a running cluster. Its methods may be called concurrently; after Stop the clients that they return fail.
type Cluster struct {
	form
	dir  string
	stop func() error
}

// form is the difference between a control plane in this process and one in a separate process.
type form interface {
	// Kubeconfig is the path of a kubeconfig of an administrator (system:masters).
	Kubeconfig() string
	// As returns a client configuration for a user in groups.
	As(user string, groups ...string) (*rest.Config, error)
	// Client returns an administrator's client with read-your-writes consistency. The caller may modify the objects
	// that it returns. It knows the types of Kubernetes and of Coracle, and all other kinds as unstructured.
	Client() ctrl.WithWatch
	// run serves until ctx is done. It calls ready once the cluster is usable.
	run(ctx context.Context, ready func()) error
}

// New starts a cluster, and stops it when the test and its subtests have ended. The test fails if either fails.
func New(t testing.TB, c Config) *Cluster {
	t.Helper()
	cluster, err := Start(c)
	if err != nil {
		t.Fatalf("could not start a test cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("could not stop the test cluster: %v", err)
		}
	})
	return cluster
}

// Start is New for a TestMain or an example. The caller must call Stop.
func Start(c Config) (*Cluster, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := os.MkdirTemp("", "coracle-test-")
	if err != nil {
		return nil, err
	}
	cluster := &Cluster{dir: dir}
	if c.Parts == Pods {
		cluster.form, err = newOutside(c, dir)
	} else {
		cluster.form, err = newInside(c, dir)
	}
	if err == nil {
		err = cluster.start(c)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return cluster, nil
}

func (c *Cluster) start(config Config) error {
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan struct{})
	var failure error
	go func() {
		defer close(ended)
		failure = c.run(ctx, func() { close(ready) })
	}()
	stopped := func() error {
		cancel()
		<-ended
		return failure
	}
	select {
	case <-ended:
		cancel()
		return errors.Join(failure, errors.New("the cluster ended while it started"))
	case <-ready:
	}
	fakes, err := c.fakeNodes(config)
	if err != nil {
		return errors.Join(err, stopped())
	}
	c.stop = sync.OnceValue(func() error {
		return errors.Join(fakes(), stopped(), os.RemoveAll(c.dir))
	})
	return nil
}

// Stop stops the cluster and removes its data. It may be called repeatedly.
func (c *Cluster) Stop() error { return c.stop() }

// REST returns the configuration of an administrator's client. It has no rate limit; the caller may change it.
func (c *Cluster) REST() *rest.Config {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		panic(fmt.Sprintf("testcluster: %v", err)) // this package wrote the file, which exists until Stop
	}
	cfg.QPS = -1
	return cfg
}

func (c *Cluster) fakeNodes(config Config) (end func() error, err error) {
	if config.FakeNodes == 0 {
		return func() error { return nil }, nil
	}
	registered := make(chan struct{})
	once := sync.OnceFunc(func() { close(registered) })
	nodes, err := fakenode.New(fakenode.Config{REST: c.REST(), Count: config.FakeNodes, Log: config.Log,
		Progress: func(string) { once() }}) // the first call follows the registration
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- nodes.Run(ctx) }()
	select {
	case err := <-ended:
		cancel()
		return nil, err
	case <-registered:
	}
	return func() error { cancel(); return <-ended }, nil
}
