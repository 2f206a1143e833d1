// Package apiservices connects APIServices to the API server: it keeps one for each group and version that this
// server serves, probes the servers of the others, and publishes the CAs that those need to authenticate requests.
//
// It is part of each server rather than a reconciler, because each server forwards requests itself. Its invariants:
// a server that does not respond delays only the requests to it; and as long as no APIService refers to a Service,
// it makes no connection, watches no Services and runs no goroutine for them.
package apiservices

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// FrontProxy is the common name of the certificate with which the API server authenticates to aggregated API
// servers.
const FrontProxy = "front-proxy-client"

// Server is the API server that forwards requests.
type Server interface {
	SetRemotes([]apiserver.Remote)
	FailRemote(http.ResponseWriter, *http.Request, error)
}

// Services resolves the Services of APIServices.
type Services interface {
	ResolveEndpoint(namespace, name string, port int32) (*url.URL, error)
	GetEndpointSlices(namespace, name string) ([]*discoveryv1.EndpointSlice, error)
}

// Trust contains what aggregated API servers need to authenticate requests.
type Trust struct {
	// Certificate returns the certificate of FrontProxy. FrontProxyCAs are its CAs, in PEM.
	Certificate   func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	FrontProxyCAs []byte
	// ClientCAs returns the current CAs of client certificates, in PEM.
	ClientCAs func() []byte
}

// Config configures a Controller. All fields are required.
type Config struct {
	// Client has all permissions.
	Client   client.Interface
	Server   Server
	Kinds    *kind.Catalog
	Services Services
	// Trust is called once, after After is closed.
	Trust func() (Trust, error)
	// After is closed when the controller may write objects, which must not delay the start of the server.
	After <-chan struct{}
	Log   *slog.Logger
}

// Validate checks a Config.
func (c Config) Validate() error {
	if c.Client == nil || c.Server == nil || c.Services == nil || c.Kinds == nil || c.Trust == nil || c.After == nil ||
		c.Log == nil {
		return errors.New("aggregation: all fields of Config are required")
	}
	return nil
}

// Controller is the component "aggregation". It is ready once it has listed the stored APIServices. Until their
// servers have been reached, requests for them fail with 503.
type Controller struct {
	cfg   Config
	trust Trust
	run.Readiness

	mu       sync.Mutex
	known    map[string]*remote // APIServices that refer to a Service, by name
	listed   bool               // known has the APIServices that existed at the start
	changed  chan struct{}      // closed when a server's groups, versions or resources change
	enqueue  func(engine.Request)
	watching sync.WaitGroup
}

var _ run.Component = (*Controller)(nil)

// New creates a controller. It starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Controller{
		cfg:     cfg,
		known:   map[string]*remote{},
		changed: make(chan struct{}),
		enqueue: func(engine.Request) {},
	}, nil
}

// Name implements run.Component.
func (c *Controller) Name() string { return "aggregation" }

// Requests that are not for one APIService. No APIService can have these names.
var (
	localServices = engine.RequestFor("", "local APIServices")
	trustObject   = engine.RequestFor("", "trust")
)

// Refresh publishes the CAs of client certificates again. Call it after they change.
func (c *Controller) Refresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueue(trustObject)
}

// Run implements run.Component.
func (c *Controller) Run(ctx context.Context) error {
	var list apiregistrationv1.APIServiceList
	if err := c.cfg.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("could not list APIServices: %w", err)
	}
	c.mu.Lock()
	for i := range list.Items {
		if s := &list.Items[i]; s.Spec.Service != nil {
			c.known[s.Name] = &remote{service: s}
		}
	}
	c.listed = true
	c.mu.Unlock()
	c.publish()
	c.SetReady()
	defer c.close()
	select {
	case <-c.cfg.After:
	case <-ctx.Done():
		return nil
	}
	var err error
	if c.trust, err = c.cfg.Trust(); err != nil {
		return fmt.Errorf("could not load the front proxy's certificate: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer c.watching.Wait()
	defer stop()
	c.watching.Go(func() { c.followKinds(ctx) })
	return c.run(ctx, c.services(ctx))
}

func (c *Controller) run(ctx context.Context, r *engine.Reconciler) error {
	return engine.Run(ctx, engine.Config{ClientFor: func(string) client.Interface { return c.cfg.Client }, Log: c.cfg.Log},
		[]*engine.Reconciler{r}, func() {})
}

func (c *Controller) services(ctx context.Context) *engine.Reconciler {
	follow := sync.OnceFunc(func() {
		c.watching.Go(func() {
			if err := c.run(ctx, c.endpoints()); err != nil {
				c.cfg.Log.Error("could not follow the services of aggregated API servers", "error", err)
			}
		})
	})
	return &engine.Reconciler{
		Name: "apiservice", Workers: 8, // so many servers may hang at once before others wait for probeTimeout
		Watches: []engine.Watch{
			{
				Object: &apiregistrationv1.APIService{},
				Map: func(_ context.Context, _ engine.Env, o ctrl.Object) []engine.Request {
					if managed(o) {
						return []engine.Request{localServices}
					}
					return []engine.Request{engine.RequestFor("", o.GetName())}
				}, Changed: changed,
			},
		},
		Reads: []ctrl.Object{&corev1.Service{}, &corev1.ConfigMap{}},
		Writes: []engine.Write{
			{
				Object: &apiregistrationv1.APIService{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata, engine.Status},
			},
			{Object: &corev1.ConfigMap{}, Parts: []engine.Part{engine.Create, engine.Spec}},
		},
		New: func(env engine.Env) engine.Func {
			c.mu.Lock()
			c.enqueue = func(r engine.Request) { env.Enqueue(r, 0) }
			names := slices.Collect(maps.Keys(c.known))
			c.mu.Unlock()
			env.Enqueue(trustObject, 0)
			env.Enqueue(localServices, 0)
			for _, name := range names { // APIServices that were deleted meanwhile make no event
				env.Enqueue(engine.RequestFor("", name), 0)
			}
			return func(ctx context.Context, req engine.Request) (engine.Result, error) {
				switch req {
				case trustObject:
					return engine.Result{}, c.writeTrust(ctx, env.Client)
				case localServices:
					return engine.Result{}, c.ensureLocal(ctx, env.Client)
				}
				return c.reconcile(ctx, env, req.Name, follow)
			}
		},
	}
}

// changed ignores changes of the status alone: its messages may differ after each check.
func changed(was, is ctrl.Object) bool {
	a, ok := was.(*apiregistrationv1.APIService)
	b, same := is.(*apiregistrationv1.APIService)
	return !ok || !same || a.UID != b.UID || !equality.Semantic.DeepEqual(a.Spec, b.Spec) ||
		!maps.Equal(a.Labels, b.Labels)
}

// followKinds requests a reconcile of the local APIServices whenever kinds change, until ctx ends.
func (c *Controller) followKinds(ctx context.Context) {
	for {
		_, changed := c.cfg.Kinds.Watch()
		c.mu.Lock()
		c.enqueue(localServices)
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
