// Package client is the access of reconcilers, scheduler and agent to a cluster: a controller-runtime client and
// cache. New returns its HTTP form. pkg/api/local is its in-process form, whose reads share the server's cache by
// pointer and whose writes use no socket.
//
// Invariant: an object from Cache is immutable; callers must DeepCopy it before modifying it.
package client

import (
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// Interface is a client of one cluster with one identity.
//
// Get and List of the in-process form read from the cache and copy only the outermost struct: treat the results as
// immutable below the first level. Subresources work as in controller-runtime: SubResource("binding").Create,
// SubResource("eviction").Create, SubResource("token").Create, SubResource("scale").
type Interface interface {
	ctrl.WithWatch
	// Cache returns informers and indexed reads. The creator of the client runs its Start, not the users.
	Cache() ctrlcache.Cache
}
