package rootca

import (
	"maps"
	"sync"
)

// Bundle is a PEM CA bundle by which pods verify a part of the cluster. It may change while the reconcilers run.
type Bundle struct {
	mu      sync.Mutex
	pem     []byte
	changed map[string]func() // of the reconcilers that have run, by name
}

// NewBundle returns a Bundle with pem.
func NewBundle(pem []byte) *Bundle { return &Bundle{pem: pem} }

// Set replaces the bundle. What was published of it is updated.
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

// Follow registers changed as a reconciler's callback for changes, replacing an earlier one.
func (b *Bundle) Follow(reconciler string, changed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = map[string]func(){}
	}
	b.changed[reconciler] = changed
}
