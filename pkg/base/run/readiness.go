package run

import "sync"

// Readiness is the Ready method of a Component, which embeds it. The zero value is not ready. It must not be copied.
type Readiness struct {
	made, opened sync.Once
	ready        chan struct{}
}

// Ready implements Component.
func (r *Readiness) Ready() <-chan struct{} {
	r.made.Do(func() { r.ready = make(chan struct{}) })
	return r.ready
}

// SetReady closes the channel of Ready. Further calls do nothing.
func (r *Readiness) SetReady() {
	r.Ready()
	r.opened.Do(func() { close(r.ready) })
}
