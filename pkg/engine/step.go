package engine

import "sigs.k8s.io/controller-runtime/pkg/client"

// Notice is an event about an object that a plan wants recorded, with upstream's reasons.
type Notice struct {
	About                 client.Object
	Type, Reason, Message string
}

// Notify records a plan's notice unless it is nil.
func (e Env) Notify(n *Notice) {
	if n != nil {
		e.Events.Event(n.About, n.Type, n.Reason, "%s", n.Message)
	}
}

// Changed returns a changed copy of an object. Objects from the cache are shared.
func Changed[T interface{ DeepCopy() T }](was T, change func(T)) T {
	next := was.DeepCopy()
	change(next)
	return next
}

// Pointers returns the items of a list without copying them.
func Pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
