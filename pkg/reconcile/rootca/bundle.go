package rootca

import (
	"sync"
)

// Bundle is the PEM by which pods trust the API server. It may change while the reconciler runs.
type Bundle struct {
	mu      sync.Mutex
	pem     []byte
	changed func() // has the reconciler look at all namespaces; nil until it runs
}

// NewBundle gives a Bundle that holds pem.
func NewBundle(pem []byte) *Bundle { return &Bundle{pem: pem} }

// Set changes the bundle. The ConfigMaps follow.
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

// follow has changed called from now on, in place of what was called before.
func (b *Bundle) follow(changed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = changed
}
