package dra

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/coracle-dev/coracle/pkg/node/devices/cdi"
)

// Uses reports whether a pod has resource claims, including a claim for its extended resources (KEP-5004).
func Uses(p *corev1.Pod) bool {
	return len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil
}

// Serves reports whether a container's extended resource comes from a resource claim, not from a device plugin.
func Serves(p *corev1.Pod, container, resource string) bool {
	s := p.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}

// Given has the pod's claims prepared, and returns what the container needs for its devices.
func (m *Manager) Given(ctx context.Context, p *corev1.Pod, c *corev1.Container) (cdi.Edits, error) {
	if !Uses(p) {
		return cdi.Edits{}, nil
	}
	uids := map[string]types.UID{} // by the claim's name in the pod
	for i := range p.Spec.ResourceClaims {
		of := &p.Spec.ResourceClaims[i]
		uid, err := m.prepare(ctx, p, of)
		if err != nil {
			return cdi.Edits{}, fmt.Errorf("prepare dynamic resources: claim %s: %w", of.Name, err)
		}
		uids[of.Name] = uid
	}
	var extended types.UID
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		var err error
		if extended, err = m.prepare(ctx, p, &corev1.PodResourceClaim{ResourceClaimName: &s.ResourceClaimName}); err != nil {
			return cdi.Edits{}, fmt.Errorf("prepare dynamic resources: claim %s for extended resources: %w", s.ResourceClaimName,
				err)
		}
	}
	return cdi.Find(m.c.CDIDirs, m.devicesOf(p, uids, extended, c))
}

// devicesOf returns the CDI names of a container's devices, from its claims and its extended resources.
func (m *Manager) devicesOf(p *corev1.Pod, uids map[string]types.UID, extended types.UID,
	c *corev1.Container) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for _, want := range c.Resources.Claims {
		ids = append(ids, m.claims[uids[want.Name]].named(want.Request)...)
	}
	for _, r := range extendedRequests(p, c) {
		ids = append(ids, m.claims[extended].named(r)...)
	}
	return ids
}

// Use is a claim with the devices that a container uses.
type Use struct {
	Namespace, Name string
	Devices         []UsedDevice
}

// UsedDevice is a device of a claim, with its CDI names.
type UsedDevice struct {
	Driver, Pool, Name string
	Share              string // "" if the device is not shared
	CDI                []string
}

// InUse returns the claims that a container uses, with the devices that were prepared for it.
func (m *Manager) InUse(p *corev1.Pod, c *corev1.Container) (out []Use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	add := func(name string, requests ...string) {
		for _, claim := range m.claims {
			if claim.Namespace != p.Namespace || claim.Name != name || !slices.Contains(claim.Pods, p.UID) {
				continue
			}
			use := Use{Namespace: claim.Namespace, Name: claim.Name}
			for _, d := range claim.Devices {
				if slices.ContainsFunc(requests, d.serves) {
					use.Devices = append(use.Devices, UsedDevice{d.Driver, d.Pool, d.Name, d.Share, d.CDI})
				}
			}
			out = append(out, use)
		}
	}
	for i := range p.Spec.ResourceClaims {
		of := &p.Spec.ResourceClaims[i]
		var requests []string
		for _, want := range c.Resources.Claims {
			if want.Name == of.Name {
				requests = append(requests, want.Request)
			}
		}
		if name, _, err := resourceclaim.Name(p, of); err == nil && name != nil && len(requests) > 0 {
			add(*name, requests...)
		}
	}
	if requests := extendedRequests(p, c); len(requests) > 0 {
		add(p.Status.ExtendedResourceClaimStatus.ResourceClaimName, requests...)
	}
	return out
}

// extendedRequests returns a container's requests in the claim for the pod's extended resources.
func extendedRequests(p *corev1.Pod, c *corev1.Container) (out []string) {
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		for _, r := range s.RequestMappings {
			if q := c.Resources.Requests[corev1.ResourceName(r.ResourceName)]; r.ContainerName == c.Name && !q.IsZero() &&
				!slices.Contains(out, r.RequestName) {
				out = append(out, r.RequestName)
			}
		}
	}
	return out
}

// named returns the CDI names of the claim's devices for a request; "" means all requests. A nil claim has none.
func (c *claim) named(request string) []string {
	if c == nil {
		return nil
	}
	var ids []string
	for _, d := range c.Devices {
		if d.serves(request) {
			ids = append(ids, d.CDI...)
		}
	}
	return ids
}

// serves reports whether a device is for a request; "" means any request.
func (d device) serves(request string) bool {
	return request == "" || len(d.Requests) == 0 ||
		slices.ContainsFunc(d.Requests, func(r string) bool { return resourceclaim.BaseRequestRef(r) == request })
}
