package services

import (
	"hash/maphash"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Memory is what each service's endpoints were last made from, and what was written then. A reconciler's own writes wake it again; by its
// memory it knows them without doing the work of thousands of endpoints anew. It forgets at a restart, and only ever saves work. It holds
// a few words for each service and for each object written for it, until Forget.
type Memory struct {
	seed maphash.Seed
	mu   sync.Mutex
	last map[client.ObjectKey]State
}

// NewMemory makes an empty one.
func NewMemory() *Memory {
	return &Memory{seed: maphash.MakeSeed(), last: map[client.ObjectKey]State{}}
}

// State is a service with its pods, and the objects that hold its endpoints.
type State struct {
	from uint64
	// Written are the resource versions of the objects that hold the endpoints, by name.
	Written map[string]string
}

// State is that of a service and the pods which it selects, in a steady order, with nothing written.
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

// Is reports whether the service was last left in this state.
func (m *Memory) Is(key client.ObjectKey, s State) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok := m.last[key]
	return ok && last.from == s.from && maps.Equal(last.Written, s.Written)
}

// Keep remembers the state that a service was left in.
func (m *Memory) Keep(key client.ObjectKey, s State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last[key] = s
}

// Forget forgets a service.
func (m *Memory) Forget(key client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, key)
}
