package devices

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Health returns the health of a container's devices (KEP-4680), sorted. It is unknown for a device that the plugin
// does not list, and after a restart of the agent until the plugin has registered again.
func (m *Manager) Health(pod types.UID, container string) (out []corev1.ResourceStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resources := m.assigned[pod][container]
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		list := make([]corev1.ResourceHealth, 0, len(resources[name].IDs))
		for _, id := range slices.Sorted(slices.Values(resources[name].IDs)) {
			h := corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: corev1.ResourceHealthStatusUnknown}
			if r := m.resources[name]; r != nil {
				if healthy, known := r.devices[id]; known && healthy {
					h.Health = corev1.ResourceHealthStatusHealthy
				} else if known {
					h.Health = corev1.ResourceHealthStatusUnhealthy
				}
			}
			list = append(list, h)
		}
		out = append(out, corev1.ResourceStatus{Name: corev1.ResourceName(name), Resources: list})
	}
	return out
}

// users returns the pods that have one of the changed devices. Called with the lock held.
func (m *Manager) users(resource string, changed map[string]bool) (out []types.UID) {
	for uid, containers := range m.assigned {
		for _, resources := range containers {
			if a := resources[resource]; a != nil && slices.ContainsFunc(a.IDs, func(id string) bool { return changed[id] }) {
				out = append(out, uid)
				break
			}
		}
	}
	return out
}

func (m *Manager) healthChanged(pods []types.UID) {
	if len(pods) > 0 && m.c.HealthChanged != nil {
		m.c.HealthChanged(pods)
	}
}
