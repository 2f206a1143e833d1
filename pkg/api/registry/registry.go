// Package registry implements reads and writes of the API independently of HTTP: admission, defaulting, validation,
// generation, finalizers, owner references, patches. Package admission decides which admission plugins run.
//
// Two invariants: an in-process write returns only once the cache shows its revision, and every error is a Status
// error (apierrors).
//
// Managed fields are recorded on every write as upstream does; see tracked.go.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/capabilities"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// Config configures a Registry.
type Config struct {
	Kinds *kind.Catalog
	Store *store.Store
	Cache *cache.Cache

	// ServiceCIDR is the first IPv4 range of cluster IPs; ServiceCIDR objects add others. Default 10.43.0.0/16.
	ServiceCIDR netip.Prefix
	// ClusterCIDR is the range of pod IPs, which no range of cluster IPs may overlap. The zero value means unknown.
	ClusterCIDR netip.Prefix
	// NodePortMin and NodePortMax are the first and the last node port. Default 30000 and 32767.
	NodePortMin, NodePortMax int32

	// EventTTL is how long events are retained after their last write. Default one hour.
	EventTTL time.Duration

	// Tokens signs service account tokens. If nil, TokenRequests fail with 503.
	Tokens *Tokens
	// Audiences are the API server's audiences, used for token requests without audiences.
	Audiences []string
	// MaxTokenLife limits the lifetime of requested tokens; 0 means no limit. ExactTokenLife says that kubelets' tokens
	// for pods do not outlive the requested expiration either.
	MaxTokenLife   time.Duration
	ExactTokenLife bool

	// Authorizer decides if a write needs more than its own verb: an update that creates, or a role with rules that
	// its author does not have. Nil allows everything. It can also be set with UseAuthorizer.
	Authorizer authorizer.Authorizer
	// Admission is the chain that every write passes. It can also be set with UseAdmission; until then, writes fail.
	Admission admission.Interface

	// DenyPrivileged refuses privileged containers, as kube-apiserver does without --allow-privileged. Upstream's
	// validation reads this setting once per process, so the first registry decides.
	DenyPrivileged bool

	Logger *slog.Logger
}

// Validate sets defaults and returns an error for missing or invalid settings.
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
		return fmt.Errorf("registry: invalid node port range %d-%d", c.NodePortMin, c.NodePortMax)
	}
	c.EventTTL = cmp.Or(c.EventTTL, time.Hour)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Registry implements the API without HTTP. It is safe for concurrent use.
type Registry struct {
	cfg        Config
	kinds      *kind.Catalog
	store      *store.Store
	cache      *cache.Cache
	namespaces *kind.Resource // nil if the kind is not served
	services   *kind.Resource
	addresses  *kind.Resource // IPAddress
	ranges     *kind.Resource // ServiceCIDR
	nodes      *kind.Resource
	admission  admission.Interface
	objects    func() *objects
	quotas     *quotas // nil unless UseQuotas was called

	authorizer atomic.Pointer[authorizer.Authorizer]
	reviews    atomic.Pointer[Reviews]

	managers managers
	empties  empties
}

// New returns a registry. It starts no goroutines. The store and the cache must be ready before the first call.
func New(cfg Config) (*Registry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	capabilities.Setup(!cfg.DenyPrivileged, 0)
	if capabilities.Get().AllowPrivileged == cfg.DenyPrivileged {
		return nil, errors.New("another cluster in this process has a different allow-privileged: upstream's " +
			"validation has one setting per process")
	}
	limitCopies()
	r := &Registry{cfg: cfg, kinds: cfg.Kinds, store: cfg.Store, cache: cfg.Cache}
	r.objects = kind.Derive(cfg.Kinds, objectsOf)
	r.namespaces = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	r.services = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{Version: "v1", Resource: "services"})
	r.addresses = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{
		Group:    "networking.k8s.io",
		Version:  "v1",
		Resource: "ipaddresses",
	})
	r.ranges = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{
		Group:    "networking.k8s.io",
		Version:  "v1",
		Resource: "servicecidrs",
	})
	r.nodes = cfg.Kinds.Table().ByGVR(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	if cfg.Authorizer != nil {
		r.UseAuthorizer(cfg.Authorizer)
	}
	r.admission = cfg.Admission
	return r, nil
}

// UseAdmission sets Config.Admission, for chains with plugins that read through the registry. Call it before the first
// write.
func (r *Registry) UseAdmission(chain admission.Interface) { r.admission = chain }

// Kinds returns the catalog of the served kinds.
func (r *Registry) Kinds() *kind.Catalog { return r.kinds }

// UseAuthorizer sets Config.Authorizer, for authorizers that read through the registry.
func (r *Registry) UseAuthorizer(a authorizer.Authorizer) { r.authorizer.Store(&a) }

// Authorize implements authorizer.Authorizer with the current authorizer. Without one, everything is allowed.
func (r *Registry) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if p := r.authorizer.Load(); p != nil {
		return (*p).Authorize(ctx, a)
	}
	return authorizer.DecisionAllow, "", nil
}

// Reviews fills in the status of a kind that is created but never stored, such as a TokenReview. ctx carries the user.
type Reviews func(ctx context.Context, namespace string, obj runtime.Object) error

// UseReviews sets the handler of reviews created by in-process clients. Until then they fail with 503.
func (r *Registry) UseReviews(f Reviews) { r.reviews.Store(&f) }

// Review handles a review by the user in ctx.
func (r *Registry) Review(ctx context.Context, namespace string, obj runtime.Object) error {
	if f := r.reviews.Load(); f != nil {
		return (*f)(ctx, namespace, obj)
	}
	return apierrors.NewServiceUnavailable("this server does not serve reviews")
}

// Target identifies what a call is about. Name is empty for create, list and deletecollection.
type Target struct {
	Resource        *kind.Resource
	Subresource     string
	Namespace, Name string
}

// Result is the result of a call. Entry is set if the object is as stored, to share its encodings. Otherwise Object
// is set (dry run, scale, Status of a deletion, eviction, binding).
type Result struct {
	Entry   *cache.Entry
	Object  runtime.Object
	Created bool // the response is 201 instead of 200
	Pending bool // the deletion waits for finalizers or grace
}

// Value returns Object, or the object of Entry, which is shared and must not be modified.
func (r Result) Value() (runtime.Object, error) {
	switch {
	case r.Object != nil:
		return r.Object, nil
	case r.Entry != nil:
		return r.Entry.Whole().Object, nil
	}
	return nil, apierrors.NewInternalError(errors.New("the call has no result"))
}

// The user of a call is taken from ctx (k8s.io/apiserver/pkg/endpoints/request.WithUser). Warnings go to the recorder
// in ctx (k8s.io/apiserver/pkg/warning).

// call is the state of one call.
type call struct {
	*Registry
	Target
	ctx  context.Context // carries the namespace and request info that upstream's strategies read
	row  *kind.Resource  // the row the object is stored as; Target.Resource is the requested one
	user user.Info
	dry  bool
	verb string

	items   int    // in the specification; see checkLists
	without string // the finalizer that a deletion removes; "" for none
	// conditions are further conditions for the write of a Service, such as an unchanged ServiceCIDR.
	conditions []store.Op
}

// begin checks the target against its row.
func (r *Registry) begin(ctx context.Context, t Target, verb string, dryRun []string) (*call, error) {
	if t.Resource == nil {
		return nil, apierrors.NewInternalError(errors.New("a call without a resource"))
	}
	if verb != "create" { // the strategy's error says more
		if wrong := content.IsPathSegmentName(t.Name); len(wrong) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", t.Name, strings.Join(wrong, ";")))
		}
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

// gr returns the resource as named in errors.
func (c *call) gr() schema.GroupResource { return c.Resource.GR() }

func (c *call) notFound() error {
	if err := c.unreadable(); err != nil {
		return err
	}
	return apierrors.NewNotFound(c.gr(), c.Name)
}

func (c *call) entry() *cache.Entry { return c.cache.Get(c.row, c.Namespace, c.Name) }

// strategy returns the strategy that writes objects: the stored version's, which works on the internal version
// shared by all versions, unless each version has its own.
func (c *call) strategy() kind.Strategy {
	if c.row.PerVersion {
		return c.Resource.Strategy
	}
	return c.row.Strategy
}

// selecting returns the row whose fields selectors use: the stored version's, unless each version has its own.
func (c *call) selecting() *kind.Resource {
	if c.row.PerVersion {
		return c.Resource
	}
	return c.row
}

// internal converts a cached object for the strategies. It returns a copy: strategies move parts of the old object
// into the new one, and then write to them.
func (c *call) internal(e *cache.Entry) (runtime.Object, error) {
	if c.row.PerVersion {
		shown, err := As(c.Resource, e)
		if err != nil {
			return nil, err
		}
		return shown.Object.DeepCopyObject(), nil
	}
	o, err := c.row.Internal(e.Object.DeepCopyObject().(client.Object))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return o, nil
}

// sync waits until the cache has reached the store's current revision, and returns it.
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
