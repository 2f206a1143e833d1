package kind

import (
	"context"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Subresource is a subresource of a kind, implemented by one of Create, Scale, Update and Connect.
type Subresource struct {
	Name string
	// GroupVersionKind is the kind of the object that is read and written: autoscaling/v1 Scale, policy/v1 Eviction.
	schema.GroupVersionKind
	Verbs []string
	New   func() runtime.Object
	// Create handles a POST (binding, eviction, token).
	Create Creator
	// Scale reads and writes the fields behind the scale subresource.
	Scale *Scale
	// Table prints the subresource's objects. If nil, their names and creation times are printed.
	Table rest.TableConvertor
	// Update is the strategy of a subresource that covers a part of the parent (ephemeralcontainers, resize).
	Update rest.RESTUpdateStrategy
	// Connect returns the handler of a byte stream (log, exec, attach, portforward, proxy), which has no New.
	Connect Connector
	// Undocumented is true for Coracle's own subresources of upstream's kinds: they are in discovery, but not in
	// OpenAPI.
	Undocumented bool
	// Methods are the HTTP methods of a byte stream; empty means all.
	Methods []string
	// MaxBody is the maximum size of the request body in bytes; a byte stream's body is read before Connect is called.
	// If 0, the handler reads the body.
	MaxBody int64
	// Relays is true if most errors of the byte stream come from a receiver behind the server. They are not counted as
	// failures of the server.
	Relays bool
}

// Connector returns the handler for req, whose body has not been read and whose context is cancelled when the server
// stops. Errors are Status errors.
type Connector func(req *http.Request, on Connection) (http.Handler, error)

// Connection is the object whose subresource is a byte stream, with operations for a Connector.
type Connection interface {
	// Target returns the object's kind, namespace and name.
	Target() (r *Resource, namespace, name string)
	// Path returns the segments of the request's path after the subresource.
	Path() []string
	// Get returns an object of the target's kind and namespace in its internal version. Errors are Status errors.
	Get(ctx context.Context, name string) (runtime.Object, error)
	// Read returns another object from the cache, or nil if it does not exist.
	Read(gvk schema.GroupVersionKind, namespace, name string) client.Object
	// List returns the cached objects of a kind in a namespace, which must not be modified.
	List(gvk schema.GroupVersionKind, namespace string) []client.Object
	// Change writes a change of an object with the server's own permissions and without admission, and retries on
	// conflict. It returns an error of change.
	Change(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string,
		change func(client.Object) (client.Object, error)) error
	// Await returns nil once until returns true, or an error when ctx is done. It calls until now and after each
	// change of objects of the kind in the namespace.
	Await(ctx context.Context, gvk schema.GroupVersionKind, namespace string, until func() bool) error
	// Node returns the base URL of a node's API, and a transport that authenticates to it and supports upgrades.
	Node(ctx context.Context, name string) (*url.URL, http.RoundTripper, error)
	// Policies returns nil if this server does not serve network policies.
	Policies() Policies
	// MayCreate returns a Status error unless the user may create the subresource, whatever the request's method.
	MayCreate(ctx context.Context) error
	// Hold counts n received bytes against the limits of request bodies, until Drop or the end of the request. It
	// returns a Status error if a limit is exceeded.
	Hold(n int) error
	Drop(n int)
	// Recheck returns a Status error unless the user still has the permissions with which the request was authorized.
	Recheck(ctx context.Context) error
	// Admit runs admission for the connection. options is in the internal version. Call it before connecting to
	// anything.
	Admit(ctx context.Context, options runtime.Object) error
	// Fail responds with the Status of err.
	Fail(w http.ResponseWriter, req *http.Request, err error)
}

// Policies gives nodes the rules of network policies. netpolicy.Resolver implements it.
type Policies interface {
	// WriteRules calls write with the rules of a node, as JSON, once their version differs from after. Other nodes may
	// wait until write returns.
	WriteRules(ctx context.Context, node, after string, write func(rules []byte)) error
}

// Creator handles a POST of in, which it may modify, to a subresource of on. Errors are Status errors. If it returns
// nil, the response is a Status of success.
type Creator func(ctx context.Context, on Parent, in runtime.Object, o metav1.CreateOptions) (runtime.Object, error)

// Parent is the object whose subresource is created, with operations for a Creator that use the caller's permissions.
type Parent interface {
	// Target returns the object's kind, namespace and name.
	Target() (r *Resource, namespace, name string)
	// Admit runs admission on the created object, in its internal version. Call it before the first write.
	Admit(internal runtime.Object, o *metav1.CreateOptions) error
	// Change applies change to a copy of the stored object and writes the result, and retries on conflict. It runs no
	// strategy and no admission. It returns the stored object.
	Change(change func(client.Object) (client.Object, error)) (client.Object, error)
	// Delete deletes the object, or starts its deletion.
	Delete(o metav1.DeleteOptions) error
	// Current returns the object as stored now, or a NotFound error. It is shared and must not be modified.
	Current() (client.Object, error)
	// Read returns another object from the cache, or nil if it does not exist.
	Read(gvk schema.GroupVersionKind, namespace, name string) client.Object
	// Siblings returns the cached objects of another kind in the same namespace. They must not be modified.
	Siblings(gvk schema.GroupVersionKind) []client.Object
	// Sibling returns another object of the same namespace. Only Current and Change may be called on it.
	Sibling(gvk schema.GroupVersionKind, name string) (Parent, error)
}

// Scale maps a kind to the scale subresource (autoscaling/v1).
type Scale struct {
	// Get returns the desired replicas (nil if unset), the current replicas, and the selector of the pods.
	Get func(client.Object) (want *int32, have int32, selector *metav1.LabelSelector)
	// Set sets the desired replicas.
	Set func(client.Object, int32)
	// Read and Write replace Get and Set for kinds without a Go type, whose objects may lack these fields or have
	// other types there. The selector is text.
	Read  func(client.Object) (want *int32, have int32, selector string, err error)
	Write func(client.Object, int32) error
	// Paths has the path of the desired replicas by group and version; versions without scale have none. Nil means
	// spec.replicas.
	Paths managedfields.ResourcePathMappings
	// Missing is the path of the desired replicas if an object without them has no scale; empty if its scale is zero.
	Missing string
}
