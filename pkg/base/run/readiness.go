package run

import "sync"

// Readiness implements Component.Ready for components that embed it. The zero value is not ready. It must not be
// copied.
type Readiness struct {
	made, opened sync.Once
	ready        chan struct{}
}

// Ready implements Component.
func (r *Readiness) Ready() <-chan struct{} {
	r.made.Do(func() { r.ready = make(chan struct{}) })
	return r.ready
}

// SetReady closes the channel of Ready. It may be called repeatedly.
func (r *Readiness) SetReady() {
	r.Ready()
	r.opened.Do(func() { close(r.ready) })
}
