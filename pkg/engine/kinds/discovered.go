package kinds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/engine"
)

const (
	// discoveryTimeout bounds one discovery request.
	discoveryTimeout = 30 * time.Second
	// quietFor is how long definitions must be unchanged before the kinds are discovered again.
	quietFor = 500 * time.Millisecond
	// A failed discovery is retried after retryFirst up to retryMost.
	retryFirst, retryMost = time.Second, time.Minute
)

// definitions are the kinds whose objects add kinds to an API server.
var definitions = []schema.GroupVersionKind{
	{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
	{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"},
}

// Discovered lists the kinds in an API server's discovery. It refreshes the list when a definition changes. It is a
// component, and is ready once the kinds are known.
type Discovered struct {
	client discovery.DiscoveryInterface
	cache  ctrlcache.Cache
	log    *slog.Logger
	run.Readiness
	dirty chan struct{} // capacity 1

	mu      sync.Mutex
	kinds   map[schema.GroupVersionResource]engine.Kind
	changed chan struct{}
}

var (
	_ engine.Kinds  = (*Discovered)(nil)
	_ run.Component = (*Discovered)(nil)
)

// Discover creates the component. The cache must already be running.
func Discover(cfg *rest.Config, cache ctrlcache.Cache, log *slog.Logger) (*Discovered, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = discoveryTimeout
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Discovered{
		client:  client,
		cache:   cache,
		log:     log,
		dirty:   make(chan struct{}, 1),
		changed: make(chan struct{}),
	}, nil
}

// Name implements run.Component.
func (d *Discovered) Name() string { return "discovery" }

// Stored implements engine.Kinds.
func (d *Discovered) Stored() ([]engine.Kind, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.kinds)), d.changed
}

// Run implements run.Component.
func (d *Discovered) Run(ctx context.Context) error {
	for _, gvk := range definitions {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(gvk)
		informer, err := d.cache.GetInformer(ctx, o, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			d.log.Info("the API server has no such kind: kinds added by it are not noticed", "kind", gvk.Kind, "error", err)
			continue
		}
		reg, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { d.mark() }, UpdateFunc: func(any, any) { d.mark() }, DeleteFunc: func(any) { d.mark() },
		})
		if err != nil {
			return err
		}
		defer func() { _ = informer.RemoveEventHandler(reg) }()
	}
	retry, again := backoff.Backoff{First: retryFirst, Most: retryMost}, time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.dirty:
			again.Reset(quietFor)
			continue
		case <-again.C:
		}
		err := d.refresh()
		if err == nil {
			retry.Reset()
			continue
		}
		pause := retry.Next()
		d.log.Warn("could not discover all kinds, retrying", "after", pause, "error", err)
		again.Reset(pause)
	}
}

func (d *Discovered) mark() {
	select {
	case d.dirty <- struct{}{}:
	default:
	}
}

// refresh discovers the kinds. If a group's server does not answer, its kinds stay, and the error names the group.
func (d *Discovered) refresh() error {
	lists, err := d.client.ServerPreferredResources()
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) {
		return err
	}
	found, parseErr := stored(lists)
	if parseErr != nil {
		return parseErr
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if partial != nil {
		for gvr, k := range d.kinds {
			if _, failed := partial.Groups[gvr.GroupVersion()]; failed {
				found[gvr] = k
			}
		}
	}
	if d.kinds == nil {
		d.SetReady()
	}
	if d.kinds == nil || !maps.Equal(d.kinds, found) {
		d.kinds = found
		close(d.changed)
		d.changed = make(chan struct{})
	}
	return err
}

// stored returns the kinds that can be watched and deleted.
func stored(lists []*metav1.APIResourceList) (map[schema.GroupVersionResource]engine.Kind, error) {
	out := map[schema.GroupVersionResource]engine.Kind{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("discovery: %w", err)
		}
		for _, r := range list.APIResources {
			if gv.Group == "events.k8s.io" { // the same objects as in the core group
				continue
			}
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				k := engine.Kind{
					GroupVersionKind: gv.WithKind(r.Kind),
					Resource:         r.Name,
					Namespaced:       r.Namespaced,
					Deletable:        slices.Contains(r.Verbs, "delete"),
				}
				k.Storage = k.GroupVersionKind
				out[gv.WithResource(r.Name)] = k
			}
		}
	}
	return out, nil
}
