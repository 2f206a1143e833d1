// Package nodeplugin is shared by the test drivers of nodes: it serves their sockets and registers them with the agent.
package nodeplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin serves a driver and registers it. Set its exported fields before Start.
type Plugin struct {
	registration.UnimplementedRegistrationServer

	// Type is the type in the registration: registration.CSIPlugin or registration.DRAPlugin.
	Type, Name string
	// Kubelet is the directory shared with the agent, without symbolic links; Public is the same directory as
	// drivers see it.
	Kubelet, Public string
	// Socket is the name of the driver's socket in its directory.
	Socket string
	// Versions are the services that it announces.
	Versions []string

	mu         sync.Mutex
	registered *registration.RegistrationStatus

	servers []*grpc.Server
	done    sync.WaitGroup
}

func (p *Plugin) sockets() (driver, register string) {
	return filepath.Join(p.Kubelet, "plugins", p.Name, p.Socket), filepath.Join(p.Kubelet, "plugins_registry",
		p.Name+"-reg.sock")
}

// Start serves the driver first and its registration second.
func (p *Plugin) Start(driver *grpc.Server) error {
	socket, registry := p.sockets()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return err
	}
	register := grpc.NewServer()
	registration.RegisterRegistrationServer(register, p)
	for _, s := range []struct {
		path   string
		server *grpc.Server
	}{{socket, driver}, {registry, register}} {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l, err := listen(s.path)
		if err != nil {
			return err
		}
		p.servers = append(p.servers, s.server)
		p.done.Go(func() { _ = s.server.Serve(l) })
	}
	return nil
}

// listen listens at a path that may be longer than a socket address (108 bytes).
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

// Stop ends the driver without a graceful shutdown and removes its sockets.
func (p *Plugin) Stop() {
	for _, s := range p.servers {
		s.Stop()
	}
	p.done.Wait()
	p.servers = nil
	socket, registry := p.sockets()
	_ = os.Remove(registry)
	_ = os.Remove(socket)
}

// Registered returns the outcome of the last registration, or nil.
func (p *Plugin) Registered() *registration.RegistrationStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.registered
}

// GetInfo implements registration.RegistrationServer.
func (p *Plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              p.Type,
		Name:              p.Name,
		Endpoint:          filepath.Join(p.Public, "plugins", p.Name, p.Socket),
		SupportedVersions: p.Versions,
	}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer.
func (p *Plugin) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.registered = s
	return &registration.RegistrationStatusResponse{}, nil
}
