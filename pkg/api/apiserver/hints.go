package apiserver

import (
	"crypto/x509"
	"sync"
)

// hints holds the CAs that the server names in its TLS certificate request: the client CAs and the front proxy's
// CAs.
type hints struct {
	clients func() *x509.CertPool
	proxy   func() []*x509.Certificate

	mu     sync.Mutex
	base   *x509.CertPool
	added  []*x509.Certificate
	joined *x509.CertPool
}

// pool returns all CAs. It returns the same pool until a CA changes.
func (h *hints) pool() *x509.CertPool {
	base, more := h.clients(), h.proxy()
	if len(more) == 0 {
		return base
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.joined == nil || h.base != base || len(h.added) != len(more) || &h.added[0] != &more[0] {
		h.base, h.added, h.joined = base, more, base.Clone()
		for _, c := range more {
			h.joined.AddCert(c)
		}
	}
	return h.joined
}
