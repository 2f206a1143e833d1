package rootca

import (
	"maps"
	"sync"
)

// Bundle is a PEM CA bundle for verifying a part of the cluster. It may change while the reconcilers run.
type Bundle struct {
	mu      sync.Mutex
	pem     []byte
	changed map[string]func() // callbacks by reconciler
}

// NewBundle returns a Bundle that contains pem.
func NewBundle(pem []byte) *Bundle { return &Bundle{pem: pem} }

// Set replaces the bundle, and makes the reconcilers publish it.
func (b *Bundle) Set(pem []byte) {
	b.mu.Lock()
	b.pem = pem
	changed := maps.Clone(b.changed)
	b.mu.Unlock()
	for _, f := range changed {
		f()
	}
}

// PEM returns the bundle.
func (b *Bundle) PEM() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.pem)
}

// Follow registers a reconciler's callback for changes. It replaces the reconciler's earlier one.
func (b *Bundle) Follow(reconciler string, changed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = map[string]func(){}
	}
	b.changed[reconciler] = changed
}
