// Package devices assigns the devices of device plugins (deviceplugin/v1beta1), such as GPUs, to containers: it
// reports them as extended resources of the node, and gives each device to at most one container.
//
// Its invariant: an assignment is on disk before the plugin is called, and a device becomes free only after its pod
// has released everything. So no device ever has two users, also after restarts of the agent and of plugins.
package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/devices/cdi"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

const (
	maxResources = 256   // of all plugins
	maxDevices   = 16384 // of one resource
	maxNodes     = 64    // NUMA nodes of one device
	maxMessage   = 4 << 20

	optionsTimeout  = 10 * time.Second
	allocateTimeout = 30 * time.Second
	preStartTimeout = deviceplugin.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// Config of a Manager.
type Config struct {
	Dir plugins.Dir
	// File stores the assignments.
	File string
	// CDIDirs are the directories of CDI specifications; nil means cdi.Dirs.
	CDIDirs []string
	// Changed is called when the result of Resources may have changed.
	Changed func()
	// HealthChanged, if set, is called when the result of Health may have changed for these pods.
	HealthChanged func(pods []types.UID)
	Logger        *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

// Manager assigns devices. It is safe for concurrent use.
type Manager struct {
	c     Config
	guard run.Guard
	work  sync.WaitGroup

	mu        sync.Mutex
	resources map[string]*resourceState
	assigned  map[types.UID]map[string]map[string]*assignment // by pod, container, resource
}

// resourceState is one extended resource. It remains after its plugin has disconnected, without healthy devices.
type resourceState struct {
	plugin  *plugin         // nil if none is connected
	devices map[string]bool // by ID, true if healthy
	// nodes are the NUMA nodes of devices, by ID.
	nodes map[string][]int64
}

type assignment struct {
	IDs []string `json:"ids"`
	// Response is the plugin's ContainerAllocateResponse, empty before the plugin has answered.
	Response []byte `json:"response,omitempty"`
}

// New returns a Manager with the recorded assignments. Run serves plugins.
func New(c Config) (*Manager, error) {
	if c.CDIDirs == nil {
		c.CDIDirs = cdi.Dirs
	}
	m := &Manager{c: c, guard: run.Guard{Log: c.Logger, Component: "devices"}, resources: map[string]*resourceState{},
		assigned: map[types.UID]map[string]map[string]*assignment{}}
	return m, m.load()
}

// Resources returns the numbers of all and of healthy devices by resource. None is healthy without a plugin.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, r := range m.resources {
		healthy := int64(0)
		for _, ok := range r.devices {
			if ok {
				healthy++
			}
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(r.devices)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(healthy, resource.DecimalSI)
	}
	return capacity, allocatable
}

// Pods returns the pods to which devices are assigned.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.assigned))
}

// Forget frees the devices of a pod.
func (m *Manager) Forget(uid types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assigned[uid] == nil {
		return nil
	}
	old := m.assigned[uid]
	delete(m.assigned, uid)
	if err := m.save(); err != nil {
		m.assigned[uid] = old
		return err
	}
	return m.c.Failpoints.At("device.released")
}

// Given is what a container needs for its devices.
type Given struct {
	Env     map[string]string
	Mounts  []*deviceplugin.Mount
	Devices []*deviceplugin.DeviceSpec
	// CDI are the edits of the CDI devices that the plugin names.
	CDI cdi.Edits
}

// Allocate assigns devices to a container that is about to start, and returns what it needs for them. It keeps
// devices that the container already has. The error texts are the kubelet's.
func (m *Manager) Allocate(ctx context.Context, p *corev1.Pod, c *corev1.Container) (Given, error) {
	out := Given{Env: map[string]string{}}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		quantity := c.Resources.Limits[name]
		want := int(quantity.Value())
		m.mu.Lock()
		_, ours := m.resources[string(name)]
		m.mu.Unlock()
		if !ours || want <= 0 {
			continue
		}
		given, err := m.allocate(ctx, p, c.Name, string(name), want)
		if err != nil {
			return out, err
		}
		for _, d := range given.CdiDevices {
			names = append(names, d.GetName())
		}
		maps.Copy(out.Env, given.Envs)
		out.Mounts = append(out.Mounts, given.Mounts...)
		out.Devices = append(out.Devices, given.Devices...)
	}
	var err error
	out.CDI, err = cdi.Find(m.c.CDIDirs, names)
	return out, err
}

func (m *Manager) allocate(ctx context.Context, p *corev1.Pod, container, name string,
	want int) (*deviceplugin.ContainerAllocateResponse, error) {
	a, plug, err := m.assign(ctx, p, container, name, want)
	if err != nil {
		return nil, err
	}
	var response *deviceplugin.ContainerAllocateResponse
	if len(a.Response) > 0 {
		if response, err = decode(a.Response); err != nil {
			return nil, err
		}
	} else {
		if plug == nil {
			return nil, fmt.Errorf("endpoint not found in cache for a registered resource: %s", name)
		}
		called, cancel := context.WithTimeout(ctx, allocateTimeout)
		defer cancel()
		answer, err := plug.client.Allocate(called, &deviceplugin.AllocateRequest{
			ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: a.IDs}},
		})
		if err != nil {
			return nil, fmt.Errorf("device plugin Allocate rpc failed with err: %w", err)
		}
		if len(answer.ContainerResponses) == 0 {
			return nil, errors.New("no containers return in allocation response")
		}
		if err := m.c.Failpoints.At("device.allocated"); err != nil {
			return nil, err
		}
		response = answer.ContainerResponses[0]
		if err := m.answered(p.UID, container, name, response); err != nil {
			return nil, err
		}
	}
	if plug != nil && plug.options.PreStartRequired {
		called, cancel := context.WithTimeout(ctx, preStartTimeout)
		defer cancel()
		if _, err := plug.client.PreStartContainer(called, &deviceplugin.PreStartContainerRequest{DevicesIds: a.IDs}); err !=
			nil {
			return nil, fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
		}
	}
	return response, nil
}

// assign picks devices for a container and records them, unless it already has some.
func (m *Manager) assign(ctx context.Context, p *corev1.Pod, container, name string,
	want int) (assignment, *plugin, error) {
	m.mu.Lock()
	r := m.resources[name]
	if have := m.assigned[p.UID][container][name]; have != nil {
		defer m.mu.Unlock()
		if len(have.IDs) != want {
			return *have, nil, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", p.UID, container,
				name, len(have.IDs), want)
		}
		return *have, r.plugin, nil
	}
	plug, free := r.plugin, m.free(name, p, container)
	m.mu.Unlock()
	if plug == nil {
		return assignment{}, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	var preferred []string
	if plug.options.GetPreferredAllocationAvailable && len(free) > want {
		preferred = plug.preferred(ctx, free, want, m.c.Logger)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resources[name] != r { // can only happen after a restart
		return assignment{}, nil, fmt.Errorf("unknown Device Plugin %s", name)
	}
	free = m.free(name, p, container) // the free devices may have changed meanwhile
	if len(free) < want {
		return assignment{}, nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d",
			name, want, len(free))
	}
	var ids []string
	for _, id := range append(preferred, free...) {
		if len(ids) < want && slices.Contains(free, id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	a := &assignment{IDs: ids}
	if m.assigned[p.UID] == nil {
		m.assigned[p.UID] = map[string]map[string]*assignment{}
	}
	if m.assigned[p.UID][container] == nil {
		m.assigned[p.UID][container] = map[string]*assignment{}
	}
	m.assigned[p.UID][container][name] = a
	if err := m.save(); err != nil {
		delete(m.assigned[p.UID][container], name)
		return assignment{}, nil, err
	}
	return *a, plug, m.c.Failpoints.At("device.assigned")
}

// free returns the healthy devices that a container may get, sorted, devices of finished init containers of the pod
// first. Called with the lock held.
func (m *Manager) free(name string, p *corev1.Pod, container string) []string {
	again := map[string]bool{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			continue
		}
		if a := m.assigned[p.UID][c.Name][name]; a != nil {
			for _, id := range a.IDs {
				again[id] = true
			}
		}
	}
	used := map[string]bool{}
	for uid, containers := range m.assigned {
		for holder, resources := range containers {
			a := resources[name]
			if a == nil || uid == p.UID && ordinaryInit(p, holder) {
				continue
			}
			for _, id := range a.IDs {
				used[id] = true
			}
		}
	}
	var first, rest []string
	for id, healthy := range m.resources[name].devices {
		switch {
		case !healthy || used[id]:
		case again[id]:
			first = append(first, id)
		default:
			rest = append(rest, id)
		}
	}
	slices.Sort(first)
	slices.Sort(rest)
	return append(first, rest...)
}

// ordinaryInit reports whether a container is an init container that has finished before later containers start.
func ordinaryInit(p *corev1.Pod, name string) bool {
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.Name == name {
			return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}

// Device is a device of a resource, with its NUMA nodes.
type Device struct {
	Resource, ID string
	Nodes        []int64
}

// Assigned returns a container's devices, sorted by resource and ID.
func (m *Manager) Assigned(pod types.UID, container string) (out []Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resources := m.assigned[pod][container]
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		for _, id := range slices.Sorted(slices.Values(resources[name].IDs)) {
			out = append(out, m.device(name, id))
		}
	}
	return out
}

// Healthy returns all healthy devices, sorted by resource and ID.
func (m *Manager) Healthy() (out []Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.resources)) {
		for _, id := range slices.Sorted(maps.Keys(m.resources[name].devices)) {
			if m.resources[name].devices[id] {
				out = append(out, m.device(name, id))
			}
		}
	}
	return out
}

func (m *Manager) device(resource, id string) Device {
	d := Device{Resource: resource, ID: id}
	if r := m.resources[resource]; r != nil {
		d.Nodes = r.nodes[id] // the slice is replaced, never modified
	}
	return d
}

// validResource returns an error if a plugin cannot register a resource of this name.
func validResource(name string) error {
	domain, _, qualified := strings.Cut(name, "/")
	if !qualified || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") ||
		strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) ||
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) > 0 {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	return nil
}

func (m *Manager) socket(endpoint string) string {
	return filepath.Join(m.c.Dir.DevicePlugins(), endpoint)
}
