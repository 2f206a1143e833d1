// Package client is the one way in which the reconcilers, the scheduler and
// the agent reach a cluster: a controller-runtime client and cache. New is its
// HTTP form; pkg/client/local is its in-process form, in which reads
// share the server's cache by pointer and writes pass no socket.
//
// It may import apis and the Kubernetes client libraries, never kind, registry,
// apiserver or store; it does not reach k8s.io/kubernetes. Its invariant: an object that came out of Cache is
// immutable; callers must DeepCopy it before modifying it.
package client

import (
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// Interface is a client of one cluster with one identity.
//
// Get and List of the in-process form are served from the cache without a
// copy of anything but the outermost struct: treat all they return as
// immutable below the first level. Subresources work as in controller-runtime:
// SubResource("binding").Create, SubResource("eviction").Create,
// SubResource("token").Create, SubResource("scale").
type Interface interface {
	ctrl.WithWatch
	// Cache gives informers and indexed reads. Its Start is run by whoever
	// made the client, not by who uses it.
	Cache() ctrlcache.Cache
}
