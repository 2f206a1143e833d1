package rootca

import (
	"sync"
)

// Bundle is the PEM CA bundle by which pods verify the API server. It may change while the reconciler runs.
type Bundle struct {
	mu      sync.Mutex
	pem     []byte
	changed func() // enqueues all namespaces; nil until the reconciler runs
}

// NewBundle returns a Bundle with pem.
func NewBundle(pem []byte) *Bundle { return &Bundle{pem: pem} }

// Set replaces the bundle. The ConfigMaps are updated.
func (b *Bundle) Set(pem []byte) {
	b.mu.Lock()
	b.pem = pem
	changed := b.changed
	b.mu.Unlock()
	if changed != nil {
		changed()
	}
}

func (b *Bundle) get() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.pem)
}

// follow registers changed as the callback for changes, replacing an earlier one.
func (b *Bundle) follow(changed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = changed
}
