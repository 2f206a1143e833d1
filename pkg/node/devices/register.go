package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

const socketName = "kubelet.sock"

type plugin struct {
	resource, endpoint string
	conn               *grpc.ClientConn
	client             deviceplugin.DevicePluginClient
	options            *deviceplugin.DevicePluginOptions
	cancel             context.CancelFunc
}

// Run serves the registration socket for plugins until ctx is done. Like the kubelet, it first removes the sockets of
// earlier plugins: plugins notice the new socket and register again.
func (m *Manager) Run(ctx context.Context) error {
	dir := m.c.Dir.DevicePlugins()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket != 0 {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	err = m.c.Dir.Serve(ctx, &m.guard, filepath.Join(plugins.DevicePlugins, socketName), func(s *grpc.Server) {
		deviceplugin.RegisterRegistrationServer(s, &registrations{m: m, ctx: ctx})
	})
	m.work.Wait()
	return err
}

type registrations struct {
	deviceplugin.UnimplementedRegistrationServer
	m   *Manager
	ctx context.Context //nolint:containedctx // of Run: plugins outlive the request that registers them
}

func (r *registrations) Register(ctx context.Context, req *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
	if err := r.m.register(ctx, r.ctx, req); err != nil {
		r.m.c.Logger.Warn("could not register device plugin", "resource", clip(req.ResourceName), "endpoint",
			clip(req.Endpoint), "error", clip(err.Error()))
		return nil, err
	}
	return &deviceplugin.Empty{}, nil
}

func clip(s string) string { return bounded.Text(s, 512) }

func (m *Manager) register(ctx, life context.Context, req *deviceplugin.RegisterRequest) error {
	if !slices.Contains(deviceplugin.SupportedVersions[:], req.Version) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", clip(req.Version),
			deviceplugin.SupportedVersions)
	}
	if err := validResource(req.ResourceName); err != nil {
		return err
	}
	conn, err := m.c.Dir.Dial(m.socket(req.Endpoint), maxMessage)
	if err != nil {
		return err
	}
	p := &plugin{
		resource: req.ResourceName,
		endpoint: req.Endpoint,
		conn:     conn,
		client:   deviceplugin.NewDevicePluginClient(conn),
	}
	asked, done := context.WithTimeout(ctx, optionsTimeout)
	defer done()
	if p.options, err = p.client.GetDevicePluginOptions(asked, &deviceplugin.Empty{}, grpc.WaitForReady(true)); err !=
		nil {
		conn.Close()
		return fmt.Errorf("failed to get device plugin options: %w", err)
	}
	own, cancel := context.WithCancel(life)
	p.cancel = cancel
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.resources[req.ResourceName]
	if state == nil {
		if len(m.resources) >= maxResources {
			cancel()
			conn.Close()
			return fmt.Errorf("device plugins have registered %d resources, which is the limit", maxResources)
		}
		state = &resourceState{}
		m.resources[req.ResourceName] = state
		if err := m.save(); err != nil {
			delete(m.resources, req.ResourceName)
			cancel()
			conn.Close()
			return err
		}
	}
	if state.plugin != nil {
		state.plugin.cancel() // the newest plugin replaces it
	}
	state.plugin = p
	m.work.Go(func() {
		defer conn.Close()
		defer cancel()
		_ = m.guard.Do("device plugin", func() { m.follow(own, p) }, "resource", p.resource)
	})
	m.c.Logger.Info("registered device plugin", "resource", p.resource, "endpoint", p.endpoint)
	return nil
}

// follow receives the plugin's device lists until the stream ends. Then it marks the devices as unhealthy.
func (m *Manager) follow(ctx context.Context, p *plugin) {
	stream, err := p.client.ListAndWatch(ctx, &deviceplugin.Empty{})
	for err == nil {
		var list *deviceplugin.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			err = m.update(p, list.Devices)
		}
	}
	if ctx.Err() == nil {
		m.c.Logger.Warn("device plugin is gone, its devices are unhealthy", "resource", p.resource, "error",
			clip(err.Error()))
	}
	m.mu.Lock()
	state, changed := m.resources[p.resource], map[string]bool{}
	if state.plugin == p {
		state.plugin = nil
		for id, healthy := range state.devices {
			changed[id] = healthy
			state.devices[id] = false
		}
	}
	lost, pods := slices.Contains(slices.Collect(maps.Values(changed)), true), m.users(p.resource, changed)
	m.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if lost {
		m.c.Changed()
	}
	m.healthChanged(pods)
}

func (m *Manager) update(p *plugin, list []*deviceplugin.Device) error {
	if len(list) > maxDevices {
		return fmt.Errorf("it has %d devices, at most %d are accepted", len(list), maxDevices)
	}
	devices, nodes := make(map[string]bool, len(list)), map[string][]int64{}
	for _, d := range list {
		devices[d.ID] = d.Health == deviceplugin.Healthy
		for _, n := range d.GetTopology().GetNodes() {
			if len(nodes[d.ID]) < maxNodes {
				nodes[d.ID] = append(nodes[d.ID], n.GetID())
			}
		}
	}
	m.mu.Lock()
	if m.resources[p.resource].plugin != p {
		m.mu.Unlock()
		return context.Canceled
	}
	was, changed := m.resources[p.resource].devices, map[string]bool{}
	for id, healthy := range devices {
		before, known := was[id]
		changed[id] = !known || before != healthy
	}
	for id := range was {
		if _, still := devices[id]; !still {
			changed[id] = true
		}
	}
	m.resources[p.resource].devices, m.resources[p.resource].nodes = devices, nodes
	pods := m.users(p.resource, changed)
	m.mu.Unlock()
	m.c.Changed()
	m.healthChanged(pods)
	return nil
}

// preferred asks the plugin which of the free devices to use; nil means no preference.
func (p *plugin) preferred(ctx context.Context, free []string, want int, log *slog.Logger) []string {
	called, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	response, err := p.client.GetPreferredAllocation(called, &deviceplugin.PreferredAllocationRequest{
		ContainerRequests: []*deviceplugin.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: free, AllocationSize: int32(want)},
		},
	})
	if err != nil {
		log.Warn("device plugin has no preference", "resource", p.resource, "error", clip(err.Error()))
		return nil
	}
	if len(response.ContainerResponses) == 0 || len(response.ContainerResponses[0].DeviceIDs) > want {
		return nil
	}
	return response.ContainerResponses[0].DeviceIDs
}
