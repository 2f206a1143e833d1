package testcluster

import (
	"errors"
	"fmt"
	"log/slog"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/fakenode"
)

// Parts are the parts of a cluster.
type Parts int

const (
	// API is only the API server, as with envtest: only the test changes objects. Pods need no service account.
	API Parts = iota
	// Reconcilers adds the controllers and the scheduler.
	Reconcilers
	// Pods is a complete cluster with a node that runs pods in containers: the program `coracle` in a network
	// namespace. It needs root on Linux. A killed test leaves it running; `coracle delete` with its directories
	// removes it.
	Pods
)

const mostFakes = 1000

// Config configures a Cluster. The zero value is only the API server.
type Config struct {
	Parts Parts
	// FakeNodes is the number of nodes, up to 1,000, that run no containers and report their pods as Running
	// (pkg/testing/fakenode). It requires Reconcilers.
	FakeNodes int
	// Images are image archives, as docker save and ctr export write them, to load on the node of Pods.
	Images []string
	// Coracle is the program for Pods; default $CORACLE, then `coracle` in PATH.
	Coracle string
	// Options, if set, changes the control plane's options before the start, such as its admission plugins. This
	// package sets directories and addresses.
	Options func(*config.Config)
	// Log receives the log; nil for none.
	Log *slog.Logger
}

// Validate reports invalid fields.
func (c Config) Validate() error {
	switch {
	case c.Parts < API || c.Parts > Pods:
		return fmt.Errorf("testcluster: there are no parts %d", c.Parts)
	case c.FakeNodes < 0 || c.FakeNodes > mostFakes || c.FakeNodes > fakenode.MostNodes:
		return fmt.Errorf("testcluster: %d fake nodes: must be from 0 to %d", c.FakeNodes, mostFakes)
	case c.FakeNodes > 0 && c.Parts == API:
		return errors.New("testcluster: fake nodes need Reconcilers, since nothing would bind pods to them")
	case len(c.Images) > 0 && c.Parts != Pods:
		return errors.New("testcluster: images need Pods")
	}
	return nil
}

// options returns the control plane's options without directories and addresses.
func (c Config) options() config.Config {
	o := config.Default()
	o.MergeKubeconfig = false
	// Ingresses would listen on the host's ports.
	o.Disable = []string{config.Ingresses}
	if c.Parts == API {
		o.Disable = append(o.Disable, config.Controllers, config.Scheduler)
		// Without controllers no service account exists, which the plugin requires for pods.
		o.DisableAdmissionPlugins = []string{"ServiceAccount"}
	}
	if c.Options != nil {
		c.Options(&o)
	}
	return o
}
