package pod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/agent/cdi"
	"github.com/coracle-dev/coracle/pkg/agent/devices"
	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

// devices assigns devices to a container that is about to start.
func (m *Manager) devices(ctx context.Context, p *corev1.Pod, c *corev1.Container) (devices.Given, error) {
	if m.c.Devices == nil {
		return devices.Given{}, nil
	}
	return m.c.Devices.Allocate(ctx, p, c)
}

// deviceEnv returns the variables of a container's devices. The pod's own override them.
func deviceEnv(given devices.Given) []string {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(given.Env)) {
		env = append(env, name+"="+given.Env[name])
	}
	return env
}

// blockDevices adds the container's volumes that are block devices.
func blockDevices(s *runtime.Spec, b build) error {
	for _, d := range b.c.VolumeDevices {
		volume, ok := b.volumes[d.Name]
		if !ok || !volume.Block {
			return fmt.Errorf("volume %q of device %s is not set up", d.Name, d.DevicePath)
		}
		access := "mrw"
		if volume.ReadOnly {
			access = "r" // as the kubelet
		}
		s.Devices = append(s.Devices, runtime.Device{HostPath: volume.Path, ContainerPath: d.DevicePath, Permissions: access})
	}
	return nil
}

// claimed returns what a container that is about to start gets with the pod's resource claims.
func (m *Manager) claimed(ctx context.Context, p *corev1.Pod, c *corev1.Container) (cdi.Edits, error) {
	if len(p.Spec.ResourceClaims) == 0 {
		return cdi.Edits{}, nil
	}
	if m.c.Claims == nil {
		return cdi.Edits{}, errors.New("this node has no drivers of dynamic resources")
	}
	return m.c.Claims.Given(ctx, p, c)
}

func addClaimed(s *runtime.Spec, given cdi.Edits) {
	for _, d := range given.Devices {
		host := d.HostPath
		if host == "" {
			host = d.Path
		}
		s.Devices = append(s.Devices, runtime.Device{HostPath: host, ContainerPath: d.Path, Permissions: d.Permissions})
	}
	for _, m := range given.Mounts {
		s.Mounts = append(s.Mounts, runtime.Mount{Source: m.HostPath, Target: m.ContainerPath, ReadOnly: m.ReadOnly, NoExec: m.NoExec, NoSUID: m.NoSUID, NoDev: m.NoDev, Propagation: m.Propagation})
	}
	s.Groups = append(s.Groups, given.Groups...)
}

func addDevices(s *runtime.Spec, given devices.Given) {
	for _, d := range given.Devices {
		s.Devices = append(s.Devices, runtime.Device{HostPath: d.HostPath, ContainerPath: d.ContainerPath, Permissions: d.Permissions})
	}
	for _, m := range given.Mounts {
		s.Mounts = append(s.Mounts, runtime.Mount{Source: m.HostPath, Target: m.ContainerPath, ReadOnly: m.ReadOnly})
	}
}
