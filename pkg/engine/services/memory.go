package services

import (
	"hash/maphash"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Memory records the inputs from which each service's endpoints were last computed, and the written objects. A
// reconciler's own writes enqueue it again, and Memory lets it skip computing thousands of endpoints. It is lost in a
// restart, which only costs work. Until Forget it holds a few words for each service and each object written for it.
type Memory struct {
	seed maphash.Seed
	mu   sync.Mutex
	last map[client.ObjectKey]State
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	return &Memory{seed: maphash.MakeSeed(), last: map[client.ObjectKey]State{}}
}

// State is a service with its pods, and the objects with its endpoints.
type State struct {
	from uint64
	// Written are the resource versions of the objects with the endpoints, by name.
	Written map[string]string
}

// State returns a hash of a service and the pods it selects, which does not depend on their order.
func (m *Memory) State(svc *corev1.Service, pods []*corev1.Pod) State {
	var h maphash.Hash
	h.SetSeed(m.seed)
	add := func(o client.Object) {
		_, _ = h.WriteString(string(o.GetUID()))
		_, _ = h.WriteString(o.GetResourceVersion())
		_ = h.WriteByte('/')
	}
	add(svc)
	for _, p := range pods {
		add(p)
	}
	return State{from: h.Sum64(), Written: map[string]string{}}
}

// Is reports whether the recorded state of the service equals s.
func (m *Memory) Is(key client.ObjectKey, s State) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok := m.last[key]
	return ok && last.from == s.from && maps.Equal(last.Written, s.Written)
}

// Keep records the state of a service after a reconcile.
func (m *Memory) Keep(key client.ObjectKey, s State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last[key] = s
}

// Forget removes a service.
func (m *Memory) Forget(key client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, key)
}
