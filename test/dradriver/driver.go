// Package dradriver is a DRA driver for tests. It describes its devices with CDI and records its calls.
package dradriver

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	draplugin "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/coracle-dev/coracle/test/nodeplugin"
)

// Driver serves the node service of a DRA driver. Set its fields before Start.
type Driver struct {
	draplugin.UnimplementedDRAPluginServer

	Name string
	// Kubelet is the directory shared with the agent, without symbolic links; Public is the same directory as
	// drivers see it.
	Kubelet, Public string
	// Versions are the services that it announces. Nil means v1, and the health service if Health is set.
	Versions []string
	// Health, if set, sends the health of devices until ctx ends.
	Health func(ctx context.Context, send func(*drahealth.NodeWatchResourcesResponse) error) error
	// Devices returns the devices of a claim.
	Devices func(claim *draplugin.Claim) *draplugin.NodePrepareResourceResponse
	// Call, if set, runs at each call. It may return an error for the call or block.
	Call func(ctx context.Context, method, claim string) error

	mu    sync.Mutex
	calls []string

	plugin *nodeplugin.Plugin
}

// Start serves the driver and registers it.
func (d *Driver) Start() error {
	driver := grpc.NewServer()
	draplugin.RegisterDRAPluginServer(driver, d)
	versions := d.Versions
	if versions == nil {
		versions = []string{draplugin.DRAPluginService}
		if d.Health != nil {
			versions = append(versions, drahealth.DRAResourceHealthService)
		}
	}
	if d.Health != nil {
		drahealth.RegisterDRAResourceHealthServer(driver, &health{d: d})
	}
	d.plugin = &nodeplugin.Plugin{
		Type:     registration.DRAPlugin,
		Name:     d.Name,
		Kubelet:  d.Kubelet,
		Public:   d.Public,
		Socket:   "dra.sock",
		Versions: versions,
	}
	return d.plugin.Start(driver)
}

// Stop ends the driver and removes its sockets.
func (d *Driver) Stop() { d.plugin.Stop() }

// Calls returns the calls in order, each as "method claim".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Registered returns the outcome of the last registration, or nil.
func (d *Driver) Registered() *registration.RegistrationStatus { return d.plugin.Registered() }

func (d *Driver) record(ctx context.Context, method, claim string) error {
	d.mu.Lock()
	d.calls = append(d.calls, method+" "+claim)
	d.mu.Unlock()
	if d.Call != nil {
		return d.Call(ctx, method, claim)
	}
	return nil
}

// NodePrepareResources implements draplugin.DRAPluginServer.
func (d *Driver) NodePrepareResources(ctx context.Context,
	r *draplugin.NodePrepareResourcesRequest) (*draplugin.NodePrepareResourcesResponse, error) {
	out := &draplugin.NodePrepareResourcesResponse{Claims: map[string]*draplugin.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		if err := d.record(ctx, "prepare", c.Name); err != nil {
			return nil, err
		}
		out.Claims[c.Uid] = d.Devices(c)
	}
	return out, nil
}

// NodeUnprepareResources implements draplugin.DRAPluginServer.
func (d *Driver) NodeUnprepareResources(ctx context.Context,
	r *draplugin.NodeUnprepareResourcesRequest) (*draplugin.NodeUnprepareResourcesResponse, error) {
	out := &draplugin.NodeUnprepareResourcesResponse{Claims: map[string]*draplugin.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		if err := d.record(ctx, "unprepare", c.Name); err != nil {
			return nil, err
		}
		out.Claims[c.Uid] = &draplugin.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

type health struct {
	drahealth.UnimplementedDRAResourceHealthServer
	d *Driver
}

// NodeWatchResources implements drahealth.DRAResourceHealthServer.
func (h *health) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest,
	stream drahealth.DRAResourceHealth_NodeWatchResourcesServer) error {
	return h.d.Health(stream.Context(), stream.Send)
}
