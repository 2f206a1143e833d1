package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	restclient "k8s.io/client-go/rest"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

// Config configures a Client.
type Config struct {
	// REST has the server's address and the credentials. QPS 0 means no limit, since the server limits requests itself.
	REST *restclient.Config
	// Only restricts the cached objects of a kind by namespace, label or field: an agent needs only the pods of its
	// node.
	Only map[ctrl.Object]ctrlcache.ByObject
	// Known lists kinds, with their scope, that need no discovery. Their watches wait until a server answers; watches
	// of other kinds fail. The kinds of Only should be among them.
	Known map[ctrl.Object]meta.RESTScope
	// Direct lists kinds that are not cached: every Get and List is a request. For example, the node authorizer lets
	// an agent get secrets but not list them.
	Direct []ctrl.Object
	// ReadOwnWrites makes reads wait for this client's earlier writes, as reconcilers expect. The client must be
	// allowed to watch every kind it reads or writes, and Only must not restrict them.
	ReadOwnWrites bool
}

// Validate returns an error for missing fields.
func (c Config) Validate() error {
	if c.REST == nil || c.REST.Host == "" {
		return errors.New("client: no API server address: give a kubeconfig")
	}
	return nil
}

// Client is the HTTP form of Interface. Get and List read from its cache, which starts to watch a kind on first use;
// both wait until Run has begun. It is a run.Component.
type Client struct {
	ctrl.WithWatch
	plain ctrl.Client // for writes without read-your-writes: dry runs and DeleteAllOf
	cache ctrlcache.Cache
	// Ready is closed when the cache runs and every informer requested before Run has synced.
	run.Readiness
}

var _ Interface = (*Client)(nil)

const discoveryPatience = 30 * time.Second

// knowing returns a mapper that finds the known kinds without discovery, and others with next.
func knowing(known map[ctrl.Object]meta.RESTScope, next meta.RESTMapper) (meta.RESTMapper, error) {
	first := meta.NewDefaultRESTMapper(nil)
	for object, scope := range known {
		gvk, err := apiutil.GVKForObject(object, Scheme())
		if err != nil {
			return nil, err
		}
		first.Add(gvk, scope)
	}
	return meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{first, next}}, nil
}

// New returns a client. It does not contact the server yet, except for discovery of kinds in Config.Only that are not
// in Config.Known.
func New(c Config) (*Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	cfg := restclient.CopyConfig(c.REST)
	if cfg.QPS == 0 && cfg.RateLimiter == nil {
		cfg.QPS = -1
	}
	httpClient, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	// Discovery has no context, so its requests get a timeout.
	discovery := *httpClient
	discovery.Timeout = discoveryPatience
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, &discovery)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if mapper, err = knowing(c.Known, mapper); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	shared := true
	cache, err := ctrlcache.New(cfg, ctrlcache.Options{HTTPClient: httpClient, Scheme: Scheme(), Mapper: mapper,
		ByObject: c.Only, DefaultUnsafeDisableDeepCopy: &shared, NewInformer: newInformer})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	opts := ctrl.Options{HTTPClient: httpClient, Scheme: Scheme(), Mapper: mapper,
		Cache: &ctrl.CacheOptions{Reader: cache, DisableFor: c.Direct, EnableReadYourWritesConsistency: &c.ReadOwnWrites}}
	caching, err := ctrl.NewWithWatch(cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	out := &Client{WithWatch: caching, plain: caching, cache: cache}
	if c.ReadOwnWrites {
		opts.Cache = nil
		if out.plain, err = ctrl.New(cfg, opts); err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
	}
	return out, nil
}

// Create creates an object.
func (c *Client) Create(ctx context.Context, obj ctrl.Object, opts ...ctrl.CreateOption) error {
	to := c.writer((&ctrl.CreateOptions{}).ApplyOptions(opts).DryRun)
	return writeCopy(obj, func(own ctrl.Object) error { return to.Create(ctx, own, opts...) })
}

// Update replaces an object.
func (c *Client) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.UpdateOption) error {
	to := c.writer((&ctrl.UpdateOptions{}).ApplyOptions(opts).DryRun)
	return writeCopy(obj, func(own ctrl.Object) error { return to.Update(ctx, own, opts...) })
}

// Patch changes an object.
func (c *Client) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch, opts ...ctrl.PatchOption) error {
	to := c.writer((&ctrl.PatchOptions{}).ApplyOptions(opts).DryRun)
	return writeCopy(obj, func(own ctrl.Object) error { return to.Patch(ctx, own, patch, opts...) })
}

// writer returns the client for a write. The cache never shows a dry run, so reads must not wait for it.
func (c *Client) writer(dryRun []string) ctrl.Client {
	if len(dryRun) > 0 {
		return c.plain
	}
	return c.WithWatch
}

// Status writes the status of objects.
func (c *Client) Status() ctrl.SubResourceWriter { return c.SubResource("status") }

// SubResource reads and writes a subresource of objects.
func (c *Client) SubResource(name string) ctrl.SubResourceClient {
	return subresource{c.WithWatch.SubResource(name)}
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
	if len((&ctrl.DeleteOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.plain.Delete(ctx, obj, opts...)
	}
	return c.WithWatch.Delete(ctx, obj, opts...)
}

// DeleteAllOf deletes a collection. Even with ReadOwnWrites, a later read may still return some of the objects.
func (c *Client) DeleteAllOf(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteAllOfOption) error {
	return c.plain.DeleteAllOf(ctx, obj, opts...)
}

// Cache provides informers and indexed reads. Run starts it.
func (c *Client) Cache() ctrlcache.Cache { return c.cache }

// Name is "client".
func (c *Client) Name() string { return "client" }

// endPatience is how long Run waits for the cache's goroutines. After an outage of the server, client-go's reflectors
// sleep for up to a minute and do not notice that their context is done (Reflector.watchList).
const endPatience = 3 * time.Second

// Run runs the cache until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	waiting, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.cache.WaitForCacheSync(waiting) {
			c.SetReady()
		}
	}()
	ended := make(chan error, 1)
	go func() { ended <- c.cache.Start(ctx) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(endPatience):
		}
	}
	cancel()
	<-done
	return err
}
