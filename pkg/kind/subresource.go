package kind

import (
	"context"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Subresource is one further path under an object. What it does is in one of Create, Scale, Update and Connect.
type Subresource struct {
	Name string
	// GroupVersionKind of what is read and written there: autoscaling/v1 Scale, policy/v1 Eviction.
	schema.GroupVersionKind
	Verbs []string
	// New makes an empty object of that kind.
	New func() runtime.Object
	// Create handles a POST (binding, eviction, token).
	Create Creator
	// Scale finds the numbers of the scale subresource.
	Scale *Scale
	// Update is the strategy of a subresource that is a part of the parent (ephemeralcontainers, resize).
	Update rest.RESTUpdateStrategy
	// Connect makes the handler of a byte stream (log, exec, attach, portforward, proxy), which has no New.
	Connect Connector
	// Methods are the HTTP methods of a byte stream; all if empty.
	Methods []string
}

// Connector makes the handler that answers req, whose body was not read and whose context ends with the server. Errors are Status
// errors.
type Connector func(req *http.Request, on Connection) (http.Handler, error)

// Connection is the object whose subresource is a byte stream, and what a Connector may ask of the server on behalf of the user.
type Connection interface {
	// Target is the object's kind and address.
	Target() (r *Resource, namespace, name string)
	// Path is the segments of the request's path that follow the subresource.
	Path() []string
	// Get finds an object of the target's kind and namespace in its internal version. Errors are Status errors.
	Get(ctx context.Context, name string) (runtime.Object, error)
	// Read finds another object in the cache; nil if it is not there.
	Read(gvk schema.GroupVersionKind, namespace, name string) client.Object
	// List lists the cache's objects of a kind in a namespace, which are not the caller's to change.
	List(gvk schema.GroupVersionKind, namespace string) []client.Object
	// Node is the base URL of a node's API, and a transport that authenticates to it and can be upgraded.
	Node(ctx context.Context, name string) (*url.URL, http.RoundTripper, error)
	// MayCreate returns a Status error unless the user may create what the request is about, whatever its method.
	MayCreate(ctx context.Context) error
	// Fail answers with the Status of err.
	Fail(w http.ResponseWriter, req *http.Request, err error)
}

// Creator answers a POST of in, which is its own to change, to a subresource of a parent. Errors are Status errors. A nil answer is
// a Status of success.
type Creator func(ctx context.Context, on Parent, in runtime.Object, o metav1.CreateOptions) (runtime.Object, error)

// Parent is the object whose subresource is created, and what a Creator may do with it, on behalf of the user who asked.
type Parent interface {
	// Target is the object's kind and address.
	Target() (r *Resource, namespace, name string)
	// Admit passes what was posted, in its internal version, through admission. It comes before anything is written.
	Admit(internal runtime.Object, o *metav1.CreateOptions) error
	// Change writes what change makes of a copy of the stored object, and repeats that when it loses a race. It passes no strategy
	// and no admission. The result is as stored.
	Change(change func(client.Object) (client.Object, error)) (client.Object, error)
	// Delete deletes the object, or begins to.
	Delete(o metav1.DeleteOptions) error
	// Current is the object as stored now, which is shared and must not be changed, or a not-found error.
	Current() (client.Object, error)
	// Read finds another object in the cache; nil if it is not there.
	Read(gvk schema.GroupVersionKind, namespace, name string) client.Object
	// Siblings lists the objects of another kind in the same namespace, from the cache. They are shared and must not be changed.
	Siblings(gvk schema.GroupVersionKind) []client.Object
	// Sibling is another object of the same namespace. Only Current and Change may be called on it.
	Sibling(gvk schema.GroupVersionKind, name string) (Parent, error)
}

// Scale is where objects of a kind keep what the scale subresource shows (autoscaling/v1).
type Scale struct {
	// Get gives the replicas that are wanted (nil: not said) and present, and the selector of the pods.
	Get func(client.Object) (want *int32, have int32, selector *metav1.LabelSelector)
	// Set sets the replicas that are wanted.
	Set func(client.Object, int32)
}
