// Package aggregated describes the kinds that aggregated API servers serve, as the API server's aggregation layer tells
// the controllers that act on every kind: garbage collection, namespace deletion and autoscaling. Its invariant: it has
// no behaviour, so that neither side links the other.
package aggregated

import (
	"errors"

	"k8s.io/client-go/metadata"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// ErrNotServed means that no aggregated API server serves the group and version.
var ErrNotServed = errors.New("the server could not find the requested resource")

// Remote is a kind that an aggregated API server stores. Server is an opaque name; kinds of one server share its
// limits.
type Remote struct {
	engine.Kind
	Server string
}

// Remotes lists the kinds of all aggregated API servers and reaches their objects.
type Remotes interface {
	// Served lists the kinds, including the kinds of servers that do not answer at the moment. all is false until every
	// server has answered once. changed is closed when the result is out of date.
	Served() (kinds []Remote, all bool, changed <-chan struct{})
	// Metadata returns a client that acts as the garbage collector. Requests to a server that does not answer fail.
	Metadata() (metadata.Interface, error)
}

// Remaining is what is left of one kind in a namespace that is being deleted.
type Remaining struct {
	Resource   string // "pods", "deployments.apps"
	Count      int
	Finalizers map[string]int // number of objects by finalizer
	Err        error          // why the objects could not be listed or deleted
}
