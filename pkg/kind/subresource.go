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
	// GroupVersionKind of the object that is read and written: autoscaling/v1 Scale, policy/v1 Eviction.
	schema.GroupVersionKind
	Verbs []string
	// New returns an empty object of that kind.
	New func() runtime.Object
	// Create handles a POST (binding, eviction, token).
	Create Creator
	// Scale reads and writes the fields behind the scale subresource.
	Scale *Scale
	// Table prints objects of that kind; if nil, their names and times of creation are printed.
	Table rest.TableConvertor
	// Update is the strategy of a subresource that covers a part of the parent (ephemeralcontainers, resize).
	Update rest.RESTUpdateStrategy
	// Connect returns the handler of a byte stream (log, exec, attach, portforward, proxy), which has no New.
	Connect Connector
	// Undocumented subresources are Coracle's own, of upstream's kinds: they are in discovery, but not in OpenAPI, which
	// is upstream's.
	Undocumented bool
	// Methods are the HTTP methods of a byte stream; empty means all.
	Methods []string
	// MaxBody, in bytes, is for a byte stream whose request has a body of at most that size, which is read before Connect
	// is called. 0: the handler reads the body.
	MaxBody int64
	// Relays says that most errors of the byte stream come from a receiver behind the server, and do not count as
	// failures of the server.
	Relays bool
}

// Connector returns the handler for req, whose body has not been read and whose context is cancelled when the server
// stops. Errors are Status errors.
type Connector func(req *http.Request, on Connection) (http.Handler, error)

// Connection is the object whose subresource is a byte stream, and what a Connector can do with the caller's
// permissions.
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
	// Change writes a change of an object, with the server's own permissions and without admission, and with retries on
	// conflict. An error of change is returned.
	Change(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string,
		change func(client.Object) (client.Object, error)) error
	// Await returns nil when until is true, which it asks now and after changes of objects of a kind in a namespace, or an
	// error when ctx is done.
	Await(ctx context.Context, gvk schema.GroupVersionKind, namespace string, until func() bool) error
	// Node returns the base URL of a node's API, and a transport that authenticates to it and supports upgrades.
	Node(ctx context.Context, name string) (*url.URL, http.RoundTripper, error)
	// Policies gives nodes the rules of network policies; nil if this server cannot.
	Policies() Policies
	// MayCreate returns a Status error unless the user may create the subresource, whatever the request's method.
	MayCreate(ctx context.Context) error
	// Hold counts n bytes that the sender has sent, until Drop of as many or the end of the request. Its error is a
	// Status: too many are held.
	Hold(n int) error
	Drop(n int)
	// Recheck returns a Status error unless the user still may do what the request was authorized for.
	Recheck(ctx context.Context) error
	// Admit runs admission on a connection, with its options in the internal version, before anything is connected.
	Admit(ctx context.Context, options runtime.Object) error
	// Fail responds with the Status of err.
	Fail(w http.ResponseWriter, req *http.Request, err error)
}

// Policies gives nodes the rules of network policies; netpolicy.Resolver implements it.
type Policies interface {
	// WriteRules calls write with the rules of a node, as JSON, once their version is another than after. Other nodes may
	// wait until write returns.
	WriteRules(ctx context.Context, node, after string, write func(rules []byte)) error
}

// Creator handles a POST of in, which it may modify, to a subresource of on. Errors are Status errors. If it returns
// nil, the response is a Status of success.
type Creator func(ctx context.Context, on Parent, in runtime.Object, o metav1.CreateOptions) (runtime.Object, error)

// Parent is the object whose subresource is created, and what a Creator can do with it, with the permissions of the
// caller.
type Parent interface {
	// Target returns the object's kind, namespace and name.
	Target() (r *Resource, namespace, name string)
	// Admit runs admission on the created object, in its internal version. It must be called before anything is
	// written.
	Admit(internal runtime.Object, o *metav1.CreateOptions) error
	// Change applies change to a copy of the stored object and writes the result, with retries on conflict. It runs no
	// strategy and no admission. The result is as stored.
	Change(change func(client.Object) (client.Object, error)) (client.Object, error)
	// Delete deletes the object, or starts its deletion.
	Delete(o metav1.DeleteOptions) error
	// Current returns the object as stored now, which is shared and must not be modified, or a NotFound error.
	Current() (client.Object, error)
	// Read returns another object from the cache, or nil if it does not exist.
	Read(gvk schema.GroupVersionKind, namespace, name string) client.Object
	// Siblings returns the cached objects of another kind in the same namespace. They are shared and must not be
	// modified.
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
	// Read and Write take the place of Get and Set for kinds without a Go type, whose objects may not have these fields,
	// or something else there. The selector is text.
	Read  func(client.Object) (want *int32, have int32, selector string, err error)
	Write func(client.Object, int32) error
	// Paths says where the versions of the resource keep the replicas that are wanted, by group and version; a version
	// that is not scaled has none. Nil: in spec.replicas.
	Paths managedfields.ResourcePathMappings
	// Missing is the path of the desired replicas if an object without them has no scale; empty if its scale is zero.
	Missing string
}
