// Package registry gives reads and writes of the cluster their meaning,
// without HTTP: admission, defaulting, validation, generation, finalizers,
// owners, patch. Which admission plugins there are is the business of pkg/admission.
//
// It may import kind, store, cache and the Kubernetes libraries. Its
// invariant: an in-process write returns only once the cache shows its
// revision, and every error is a metav1.Status error (apierrors) that names the field.
//
// Managed fields are upstream's, recorded from a client's create on, but for kinds that are written all the time and for what the
// server's own components create: tracked.go says which, why, and what was measured.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/capabilities"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/store"
)

// Config says what a registry writes to and by which rules.
type Config struct {
	Kinds *kind.Catalog
	Store *store.Store
	Cache *cache.Cache

	// ServiceCIDR is the IPv4 range of cluster IPs. Default 10.43.0.0/16.
	ServiceCIDR netip.Prefix
	// NodePortMin and NodePortMax bound the node ports, both included. Default 30000 and 32767.
	NodePortMin, NodePortMax int32

	// Tokens signs service account tokens; nil where there are none to be had (TokenRequest answers 503).
	Tokens *Tokens
	// Audiences are those of the API server itself: what a token request without audiences gets.
	Audiences []string
	// MaxTokenLife bounds what a token request may ask for; 0 is no bound.
	MaxTokenLife time.Duration

	// Authorizer is asked where a write needs more than its own verb: creation by an update, and rules that
	// a role's author does not have. Nil allows all. UseAuthorizer can give it later.
	Authorizer authorizer.Authorizer
	// Admission is the chain that every write passes. UseAdmission can give it later; writes fail until there is one.
	Admission admission.Interface

	// DenyPrivileged refuses pods with privileged containers, as kube-apiserver does without --allow-privileged.
	// Upstream's validation reads this once per process: the first registry made decides.
	DenyPrivileged bool

	Logger *slog.Logger
}

// Validate fills in the defaults and names what is missing.
func (c *Config) Validate() error {
	if c.Kinds == nil || c.Store == nil || c.Cache == nil {
		return errors.New("registry: Kinds, Store and Cache are required")
	}
	if !c.ServiceCIDR.IsValid() {
		c.ServiceCIDR = netip.MustParsePrefix("10.43.0.0/16")
	}
	c.ServiceCIDR = c.ServiceCIDR.Masked()
	if !c.ServiceCIDR.Addr().Is4() || c.ServiceCIDR.Bits() > 28 {
		return fmt.Errorf("registry: the service range %s must be IPv4 and at least a /28", c.ServiceCIDR)
	}
	if c.NodePortMin == 0 && c.NodePortMax == 0 {
		c.NodePortMin, c.NodePortMax = 30000, 32767
	}
	if c.NodePortMin < 1 || c.NodePortMax > 65535 || c.NodePortMin > c.NodePortMax {
		return fmt.Errorf("registry: the node ports %d-%d are no range of ports", c.NodePortMin, c.NodePortMax)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Registry is the cluster's API without HTTP. Safe for concurrent use.
type Registry struct {
	cfg        Config
	kinds      *kind.Catalog
	store      *store.Store
	cache      *cache.Cache
	namespaces *kind.Resource // nil in a table without them
	services   *kind.Resource
	addresses  *kind.Resource // of kind IPAddress
	ranges     *kind.Resource // of kind ServiceCIDR
	admission  admission.Interface
	quotas     *quotas // nil unless UseQuotas was called

	authorizer atomic.Pointer[authorizer.Authorizer]
	reviews    atomic.Pointer[Reviews]

	managers managers
}

// New makes a registry. It starts nothing; the store and the cache must be ready before it is used.
func New(cfg Config) (*Registry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	capabilities.Setup(!cfg.DenyPrivileged, 0)
	boundCopies()
	r := &Registry{cfg: cfg, kinds: cfg.Kinds, store: cfg.Store, cache: cfg.Cache}
	r.namespaces = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	r.services = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{Version: "v1", Resource: "services"})
	r.addresses = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ipaddresses"})
	r.ranges = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"})
	if cfg.Authorizer != nil {
		r.UseAuthorizer(cfg.Authorizer)
	}
	r.admission = cfg.Admission
	return r, nil
}

// UseAdmission sets Config.Admission, for plugins that themselves read through the registry. Call it before the first write.
func (r *Registry) UseAdmission(chain admission.Interface) { r.admission = chain }

// UseAuthorizer sets Config.Authorizer, for servers whose authorizer itself reads through the registry.
func (r *Registry) UseAuthorizer(a authorizer.Authorizer) { r.authorizer.Store(&a) }

// Authorize asks the authorizer in use at the time of the call; without one all is allowed. It implements authorizer.Authorizer.
func (r *Registry) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if p := r.authorizer.Load(); p != nil {
		return (*p).Authorize(ctx, a)
	}
	return authorizer.DecisionAllow, "", nil
}

// Reviews answers a kind that is created to ask a question and never stored, such as a TokenReview: it fills in the object's status.
// The user who asks is ctx's.
type Reviews func(ctx context.Context, namespace string, obj runtime.Object) error

// UseReviews sets who answers the reviews that in-process clients create; until then they are refused.
func (r *Registry) UseReviews(f Reviews) { r.reviews.Store(&f) }

// Review answers a review of the context's user.
func (r *Registry) Review(ctx context.Context, namespace string, obj runtime.Object) error {
	if f := r.reviews.Load(); f != nil {
		return (*f)(ctx, namespace, obj)
	}
	return apierrors.NewServiceUnavailable("this server answers no reviews")
}

// Target says what a call is about. Name is empty for create, list and deletecollection.
type Target struct {
	Resource        *kind.Resource
	Subresource     string
	Namespace, Name string
}

// Result is what a call answers. Entry is set where the object is as the store holds it (its encodings are
// shared); else Object (dry run, scale, Status of a deletion, eviction, binding).
type Result struct {
	Entry   *cache.Entry
	Object  runtime.Object
	Created bool // answer 201 instead of 200
	Pending bool // deletion accepted but not finished: finalizers or grace
}

// Value is the object that the call answered: Object, or that of Entry, which is shared and must not be changed.
func (r Result) Value() (runtime.Object, error) {
	switch {
	case r.Object != nil:
		return r.Object, nil
	case r.Entry != nil:
		return r.Entry.Object, nil
	}
	return nil, apierrors.NewInternalError(errors.New("the call answered nothing"))
}

// The user of a call is taken from ctx (k8s.io/apiserver/pkg/endpoints/request.WithUser), warnings go to
// ctx's recorder (k8s.io/apiserver/pkg/warning).

// call is one call on its way through.
type call struct {
	*Registry
	Target
	ctx  context.Context // carries what upstream's strategies ask for: namespace and request info
	row  *kind.Resource  // as what the object is stored; Resource is as what it was asked for
	user user.Info
	dry  bool
	verb string
}

// begin checks the target against its row.
func (r *Registry) begin(ctx context.Context, t Target, verb string, dryRun []string) (*call, error) {
	if t.Resource == nil {
		return nil, apierrors.NewInternalError(errors.New("a call without a resource"))
	}
	c := &call{Registry: r, Target: t, row: t.Resource.Stored(), dry: len(dryRun) > 0, verb: verb}
	if !t.Resource.Namespaced {
		c.Namespace = ""
	} else if t.Namespace == "" && verb != "list" && verb != "watch" && verb != "deletecollection" {
		return nil, apierrors.NewBadRequest("an empty namespace may not be set during creation")
	}
	c.user, _ = request.UserFrom(ctx)
	namespace := c.Namespace
	if r.namespaces == t.Resource {
		namespace = t.Name
	}
	c.ctx = request.WithNamespace(request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: t.Resource.Group, APIVersion: t.Resource.Version,
		Namespace: namespace, Resource: t.Resource.Plural, Subresource: t.Subresource, Name: t.Name,
	}), namespace)
	return c, nil
}

// gr is the resource as errors name it.
func (c *call) gr() schema.GroupResource { return c.Resource.GR() }

func (c *call) notFound() error {
	if err := c.unreadable(); err != nil {
		return err
	}
	return apierrors.NewNotFound(c.gr(), c.Name)
}

// entry is the object as the cache has it now, or nil.
func (c *call) entry() *cache.Entry { return c.cache.Get(c.row, c.Namespace, c.Name) }

// internal converts an object of the stored version for the strategies. It is a copy: strategies move parts of the
// old object into the new one, and then write to them.
func (c *call) internal(e *cache.Entry) (runtime.Object, error) {
	o, err := c.row.Internal(e.Object.DeepCopyObject().(client.Object))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return o, nil
}

// sync brings the cache up to the store's present revision.
func (r *Registry) sync(ctx context.Context) (int64, error) {
	rev, err := r.store.Revision(ctx)
	if err != nil {
		return 0, status(err, schema.GroupResource{}, "")
	}
	return rev, r.waitFor(ctx, rev)
}

func (r *Registry) waitFor(ctx context.Context, rev int64) error {
	if err := r.cache.WaitFor(ctx, rev); err != nil {
		return status(err, schema.GroupResource{}, "")
	}
	return nil
}
