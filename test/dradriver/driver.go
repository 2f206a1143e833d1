// Package dradriver is a DRA driver for tests. It describes its devices with CDI, and records its calls.
package dradriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	draplugin "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver serves the node's part of a DRA driver. Set its fields before Start.
type Driver struct {
	draplugin.UnimplementedDRAPluginServer
	registration.UnimplementedRegistrationServer

	Name string
	// Kubelet is the directory shared with the agent, without links; Public is its name for drivers.
	Kubelet, Public string
	// Versions are the services that it says it has; nil is v1.
	Versions []string
	// Devices returns what a claim gets.
	Devices func(claim *draplugin.Claim) *draplugin.NodePrepareResourceResponse
	// Call, if set, is called with each call, and may fail it or hang.
	Call func(ctx context.Context, method, claim string) error

	mu         sync.Mutex
	calls      []string
	registered *registration.RegistrationStatus

	servers []*grpc.Server
	done    sync.WaitGroup
}

// Start serves the driver and registers it.
func (d *Driver) Start() error {
	dir := filepath.Join("plugins", d.Name)
	if err := os.MkdirAll(filepath.Join(d.Kubelet, dir), 0o755); err != nil {
		return err
	}
	driver := grpc.NewServer()
	draplugin.RegisterDRAPluginServer(driver, d)
	register := grpc.NewServer()
	registration.RegisterRegistrationServer(register, d)
	for _, s := range []struct {
		path   string
		server *grpc.Server
	}{{filepath.Join(dir, "dra.sock"), driver}, {filepath.Join("plugins_registry", d.Name+"-reg.sock"), register}} {
		path := filepath.Join(d.Kubelet, s.path)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l, err := listen(path)
		if err != nil {
			return err
		}
		d.servers = append(d.servers, s.server)
		d.done.Go(func() { _ = s.server.Serve(l) })
	}
	return nil
}

// listen listens at a path of any length.
func listen(path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return l, err
}

// Stop ends the driver and removes its sockets.
func (d *Driver) Stop() {
	for _, s := range d.servers {
		s.Stop()
	}
	d.done.Wait()
	d.servers = nil
	_ = os.Remove(filepath.Join(d.Kubelet, "plugins_registry", d.Name+"-reg.sock"))
	_ = os.Remove(filepath.Join(d.Kubelet, "plugins", d.Name, "dra.sock"))
}

// Calls returns the calls in order, each as "method claim".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Registered returns the outcome of the last registration, or nil.
func (d *Driver) Registered() *registration.RegistrationStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.registered
}

func (d *Driver) record(ctx context.Context, method, claim string) error {
	d.mu.Lock()
	d.calls = append(d.calls, method+" "+claim)
	d.mu.Unlock()
	if d.Call != nil {
		return d.Call(ctx, method, claim)
	}
	return nil
}

// GetInfo implements registration.RegistrationServer.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	versions := d.Versions
	if versions == nil {
		versions = []string{draplugin.DRAPluginService}
	}
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: d.Name, Endpoint: filepath.Join(d.Public, "plugins", d.Name, "dra.sock"), SupportedVersions: versions}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.registered = s
	return &registration.RegistrationStatusResponse{}, nil
}

// NodePrepareResources implements draplugin.DRAPluginServer.
func (d *Driver) NodePrepareResources(ctx context.Context, r *draplugin.NodePrepareResourcesRequest) (*draplugin.NodePrepareResourcesResponse, error) {
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
func (d *Driver) NodeUnprepareResources(ctx context.Context, r *draplugin.NodeUnprepareResourcesRequest) (*draplugin.NodeUnprepareResourcesResponse, error) {
	out := &draplugin.NodeUnprepareResourcesResponse{Claims: map[string]*draplugin.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		if err := d.record(ctx, "unprepare", c.Name); err != nil {
			return nil, err
		}
		out.Claims[c.Uid] = &draplugin.NodeUnprepareResourceResponse{}
	}
	return out, nil
}
