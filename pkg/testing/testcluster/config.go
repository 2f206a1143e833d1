package testcluster

import (
	"errors"
	"fmt"
	"log/slog"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/fakenode"
)

// Parts is what runs beside the API.
type Parts int

const (
	// API is the API server alone, as with envtest: nothing happens to objects unless the test does it. Pods need no
	// service account.
	API Parts = iota
	// Reconcilers adds the controllers and the scheduler.
	Reconcilers
	// Pods is a whole cluster, with a node that runs pods in containers: the program `coracle`, in a network namespace of
	// its own. It needs root on Linux. A test that is killed leaves it running, which `coracle delete` with its
	// directories removes.
	Pods
)

// mostFakes is the maximum of Config.FakeNodes.
const mostFakes = 1000

// Config configures a Cluster. The zero value is the API alone.
type Config struct {
	Parts Parts
	// FakeNodes is a number of nodes, up to 1,000, that run nothing and report the pods bound to them as Running
	// (pkg/testing/fakenode). It requires Reconcilers.
	FakeNodes int
	// Images are files with images, as docker save and ctr export write them, that the node of Pods has.
	Images []string
	// Coracle is the program that Pods runs; if empty, the one that the variable CORACLE names, or `coracle` in PATH.
	Coracle string
	// Options, if set, changes the options of the control plane before it starts, such as its admission plugins.
	// Directories and addresses are the package's.
	Options func(*config.Config)
	// Log receives the log; nil for none.
	Log *slog.Logger
}

// Validate reports what cannot be.
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

// options returns the options of the control plane, without directories and addresses.
func (c Config) options() config.Config {
	o := config.Default()
	o.MergeKubeconfig = false
	// The host's ports are not the tests'.
	o.Disable = []string{config.Ingresses}
	if c.Parts == API {
		o.Disable = append(o.Disable, config.Controllers, config.Scheduler)
		// Nothing makes the service account that it demands of pods.
		o.DisableAdmissionPlugins = []string{"ServiceAccount"}
	}
	if c.Options != nil {
		c.Options(&o)
	}
	return o
}
