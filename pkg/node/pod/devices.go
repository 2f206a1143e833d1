package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/coracle-dev/coracle/pkg/node/devices"
	"github.com/coracle-dev/coracle/pkg/node/devices/cdi"
	"github.com/coracle-dev/coracle/pkg/node/devices/dra"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func (m *Manager) devices(ctx context.Context, p *corev1.Pod, c *corev1.Container) (devices.Given, error) {
	if m.c.Devices == nil {
		return devices.Given{}, nil
	}
	return m.c.Devices.Allocate(ctx, p, byPlugins(p, c))
}

// byPlugins returns a copy of the container without the extended resources that a resource claim provides (KEP-5004),
// since neither device plugins nor the node's capacity do.
func byPlugins(p *corev1.Pod, c *corev1.Container) *corev1.Container {
	if p.Status.ExtendedResourceClaimStatus == nil {
		return c
	}
	out := *c // shallow: only the lists of resources are replaced
	served := func(name corev1.ResourceName, _ resource.Quantity) bool { return dra.Serves(p, c.Name, string(name)) }
	out.Resources.Requests, out.Resources.Limits = maps.Clone(c.Resources.Requests), maps.Clone(c.Resources.Limits)
	maps.DeleteFunc(out.Resources.Requests, served)
	maps.DeleteFunc(out.Resources.Limits, served)
	return &out
}

// nodeRequests returns the pod's requests without extended resources that a claim satisfies.
func nodeRequests(p *corev1.Pod) corev1.ResourceList {
	if p.Status.ExtendedResourceClaimStatus != nil {
		of := p
		p = &corev1.Pod{Spec: of.Spec, Status: of.Status}
		each := func(containers []corev1.Container) []corev1.Container {
			out := slices.Clone(containers)
			for i := range out {
				out[i] = *byPlugins(of, &containers[i])
			}
			return out
		}
		p.Spec.InitContainers, p.Spec.Containers = each(of.Spec.InitContainers), each(of.Spec.Containers)
	}
	return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
}

// deviceEnv returns the variables of a container's devices. The pod's variables override them.
func deviceEnv(given devices.Given) []string {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(given.Env)) {
		env = append(env, name+"="+given.Env[name])
	}
	return env
}

func blockDevices(s *runtime.Spec, b build) error {
	for _, d := range b.c.VolumeDevices {
		volume, ok := b.volumes[d.Name]
		if !ok || !volume.Block {
			return fmt.Errorf("volume %q of device %s is not set up", d.Name, d.DevicePath)
		}
		access := "mrw"
		if volume.ReadOnly {
			access = "r" // as in the kubelet
		}
		s.Devices = append(s.Devices, runtime.Device{HostPath: volume.Path, ContainerPath: d.DevicePath, Permissions: access})
	}
	return nil
}

func (m *Manager) claimed(ctx context.Context, p *corev1.Pod, c *corev1.Container) (cdi.Edits, error) {
	if !dra.Uses(p) {
		return cdi.Edits{}, nil
	}
	if m.c.Claims == nil {
		return cdi.Edits{}, errors.New("the pod has resource claims, but this node has no DRA drivers")
	}
	return m.c.Claims.Given(ctx, p, c)
}

// addEdits applies CDI edits. Their variables override the pod's, as in containerd.
func addEdits(s *runtime.Spec, given cdi.Edits) {
	s.Env = append(s.Env, given.Env...)
	for _, d := range given.Devices {
		host := cmp.Or(d.HostPath, d.Path)
		s.Devices = append(s.Devices, runtime.Device{HostPath: host, ContainerPath: d.Path, Permissions: d.Permissions})
	}
	for _, m := range given.Mounts {
		s.Mounts = append(s.Mounts, runtime.Mount{
			Source:      m.HostPath,
			Target:      m.ContainerPath,
			ReadOnly:    m.ReadOnly,
			NoExec:      m.NoExec,
			NoSUID:      m.NoSUID,
			NoDev:       m.NoDev,
			Propagation: m.Propagation,
		})
	}
	s.Groups = append(s.Groups, given.Groups...)
}

func addDevices(s *runtime.Spec, given devices.Given) {
	for _, d := range given.Devices {
		s.Devices = append(s.Devices, runtime.Device{
			HostPath:      d.HostPath,
			ContainerPath: d.ContainerPath,
			Permissions:   d.Permissions,
		})
	}
	for _, m := range given.Mounts {
		s.Mounts = append(s.Mounts, runtime.Mount{
			Source:   m.HostPath,
			Target:   m.ContainerPath,
			ReadOnly: m.ReadOnly,
			MapIDs:   s.Users != nil,
		})
	}
}

func (m *Manager) deviceHealth(p *corev1.Pod) map[string][]corev1.ResourceStatus {
	out := map[string][]corev1.ResourceStatus{}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if m.c.Devices != nil && len(c.Resources.Limits) > 0 {
			out[c.Name] = m.c.Devices.Health(p.UID, c.Name)
		}
		if m.c.Claims != nil && dra.Uses(p) {
			out[c.Name] = append(out[c.Name], m.c.Claims.Health(p, c)...)
		}
	}
	return out
}
