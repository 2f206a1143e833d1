package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	restclient "k8s.io/client-go/rest"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Config configures the cluster, the identity and the caching of a Client.
type Config struct {
	// REST is the server's address and the identity to show it. A QPS of 0 is taken as no limit: the server has its own.
	REST *restclient.Config
	// Only narrows what is held and seen of a kind, by namespace, label or field: an agent wants the pods of its node.
	Only map[ctrl.Object]ctrlcache.ByObject
	// Direct lists kinds whose Get and List ask the server each time and hold nothing: such as
	// secrets, which the node authorizer lets an agent get, but not list.
	Direct []ctrl.Object
	// ReadOwnWrites makes a read wait for the writes that this client made before it, as reconcilers count on. It wants a
	// client that may watch, unnarrowed, every kind it writes and reads.
	ReadOwnWrites bool
}

// Validate reports missing fields.
func (c Config) Validate() error {
	if c.REST == nil || c.REST.Host == "" {
		return errors.New("client: no API server address: give a kubeconfig")
	}
	return nil
}

// Client is the HTTP form of Interface. Get and List read from its cache, which starts to watch a kind when it is
// first asked for; both wait until Run has begun. It is a run.Component.
type Client struct {
	ctrl.WithWatch
	plain ctrl.Client // for the writes that one cannot wait for: dry runs, and those of a whole collection
	cache ctrlcache.Cache
	ready chan struct{}
}

var _ Interface = (*Client)(nil)

// discoveryPatience is how long a request for the kinds that the server has may take.
const discoveryPatience = 30 * time.Second

// New creates a client. It asks the server for its kinds if Config.Only names some, and does not contact it yet otherwise.
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
	// Mappings are asked for without a context, so their requests have a deadline of their own.
	discovery := *httpClient
	discovery.Timeout = discoveryPatience
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, &discovery)
	if err != nil {
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
	out := &Client{WithWatch: caching, plain: caching, cache: cache, ready: make(chan struct{})}
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
	if len((&ctrl.CreateOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.plain.Create(ctx, obj, opts...)
	}
	return c.WithWatch.Create(ctx, obj, opts...)
}

// Update replaces an object.
func (c *Client) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.UpdateOption) error {
	if len((&ctrl.UpdateOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.plain.Update(ctx, obj, opts...)
	}
	return c.WithWatch.Update(ctx, obj, opts...)
}

// Patch changes an object.
func (c *Client) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch, opts ...ctrl.PatchOption) error {
	if len((&ctrl.PatchOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.plain.Patch(ctx, obj, patch, opts...)
	}
	return c.WithWatch.Patch(ctx, obj, patch, opts...)
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
	if len((&ctrl.DeleteOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.plain.Delete(ctx, obj, opts...)
	}
	return c.WithWatch.Delete(ctx, obj, opts...)
}

// DeleteAllOf deletes a collection. Even with ReadOwnWrites a read after it may still see some.
func (c *Client) DeleteAllOf(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteAllOfOption) error {
	return c.plain.DeleteAllOf(ctx, obj, opts...)
}

// Cache provides informers and indexed reads. Run starts it.
func (c *Client) Cache() ctrlcache.Cache { return c.cache }

// Name is "client".
func (c *Client) Name() string { return "client" }

// Ready is closed once the cache runs and every informer asked for before Run holds the server's state.
func (c *Client) Ready() <-chan struct{} { return c.ready }

// Run runs the cache until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	waiting, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.cache.WaitForCacheSync(waiting) {
			close(c.ready)
		}
	}()
	err := c.cache.Start(ctx)
	cancel()
	<-done
	return err
}
