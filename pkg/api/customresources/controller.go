// Package customresources serves the kinds that CustomResourceDefinitions define. It updates the catalog and the
// definitions' status, and deletes the objects of definitions that are being deleted.
//
// It is part of the server rather than a reconciler because it changes the catalog. Its invariants: a definition is
// Established only once its kind is served, and no definition blocks another.
package customresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/custom"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Config configures a Controller.
type Config struct {
	// Client has all permissions. Required.
	Client client.Interface
	// Kinds is the catalog to which kinds are added. Required.
	Kinds *kind.Catalog
	// Webhooks resolves the services of conversion webhooks. If it is nil, only webhooks with URLs can be called.
	Webhooks custom.Webhooks
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Validate checks a Config.
func (c Config) Validate() error {
	if c.Client == nil || c.Kinds == nil {
		return errors.New("customresources: Client and Kinds are required")
	}
	return nil
}

// Controller is the component "customresources". It is ready once it serves the kinds of all stored definitions.
type Controller struct {
	cfg   Config
	maker *custom.Maker
	run.Readiness

	names   *names
	changes *changes

	mu sync.Mutex
	// sets has the served definitions by name. Only the worker that reconciles a definition changes its entry.
	sets     map[string]*custom.Set
	emptying map[string]bool   // definitions whose objects are being deleted
	settled  map[string]string // by name, the resourceVersion at which a definition needs no work
	watching sync.WaitGroup
}

var _ run.Component = (*Controller)(nil)

// New creates a controller. It starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Controller{
		cfg: cfg, maker: custom.NewMaker(cfg.Webhooks), names: newNames(cfg.Kinds.Table().Served()),
		changes: newChanges(cfg.Kinds), sets: map[string]*custom.Set{}, emptying: map[string]bool{},
		settled: map[string]string{},
	}, nil
}

// Name implements run.Component.
func (c *Controller) Name() string { return "customresources" }

// Run implements run.Component.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.load(ctx); err != nil {
		return err
	}
	c.SetReady()
	defer c.watching.Wait()
	follow := func(f func(context.Context)) { c.watching.Go(func() { f(ctx) }) }
	r := &engine.Reconciler{
		Name: "customresourcedefinition", Workers: workers,
		Watches: []engine.Watch{{Object: metadata()}}, // metadata only: a definition as Go types is large
		Reads:   []ctrl.Object{&apiextensionsv1.CustomResourceDefinition{}},
		Writes: []engine.Write{
			{Object: &apiextensionsv1.CustomResourceDefinition{}, Parts: []engine.Part{engine.Status, engine.Finalizers}},
		},
		New: func(env engine.Env) engine.Func { return (&reconciler{c, env, follow}).reconcile },
	}
	return engine.Run(ctx, engine.Config{ClientFor: func(string) client.Interface { return c.cfg.Client }, Log: c.cfg.Log},
		[]*engine.Reconciler{r}, func() {})
}

// workers is the number of definitions that are established concurrently, sharing catalog changes and the store's
// fsyncs. It is small because a definition as Go types may take many megabytes.
const workers = 4

// loadPage is the page size for reading definitions. A large one takes many megabytes as Go types.
const loadPage = 25

// load serves all stored definitions that were accepted before, in one change of the catalog.
func (c *Controller) load(ctx context.Context) error {
	var add []*kind.Resource
	sets := map[string]*custom.Set{}
	for next := ""; ; {
		var list apiextensionsv1.CustomResourceDefinitionList
		if err := c.cfg.Client.List(ctx, &list, ctrl.Limit(loadPage), ctrl.Continue(next)); err != nil {
			return fmt.Errorf("could not list custom resource definitions: %w", err)
		}
		for i := range list.Items {
			crd := &list.Items[i]
			c.names.written(crd)
			if !accepted(crd) || c.names.isBuiltin(crd) {
				continue
			}
			set, err := c.maker.Rows(crd, nil)
			if err != nil {
				c.cfg.Log.Error("could not serve custom resource definition", "definition", crd.Name, "error", err)
				continue
			}
			sets[crd.Name] = set
			add = append(add, set.Rows...)
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	if len(add) == 0 {
		return nil
	}
	err := c.cfg.Kinds.Change(ctx, nil, add)
	if err == nil {
		c.sets = sets
		return nil
	}
	// At least one cannot be served, so add them one by one.
	c.cfg.Log.Warn("could not serve all custom resource definitions at once", "definitions", len(sets), "error", err)
	for name, set := range sets {
		if err := c.cfg.Kinds.Change(ctx, nil, set.Rows); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			c.cfg.Log.Error("could not serve custom resource definition", "definition", name, "error", err)
			continue
		}
		c.sets[name] = set
	}
	return nil
}

// metadata returns an empty metadata-only definition.
func metadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return m
}

// settle records that a definition needs no work at this resourceVersion. An empty version removes the record.
func (c *Controller) settle(name, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == "" {
		delete(c.settled, name)
	} else {
		c.settled[name] = version
	}
}

func (c *Controller) isSettled(name, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return version != "" && c.settled[name] == version
}

// set returns the rows of a served definition, or nil.
func (c *Controller) set(name string) *custom.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets[name]
}

// serve replaces a definition's rows in the catalog, or removes them if crd is nil.
func (c *Controller) serve(ctx context.Context, name string, crd *apiextensionsv1.CustomResourceDefinition) error {
	was := c.set(name)
	if was != nil && crd != nil && was.Same(crd) {
		return nil
	}
	var remove, add []*kind.Resource
	var set *custom.Set
	if was != nil {
		remove = was.Rows
	}
	if crd != nil {
		var err error
		if set, err = c.maker.Rows(crd, was); err != nil {
			return err
		}
		add = set.Rows
	}
	if len(remove)+len(add) > 0 {
		if err := c.changes.make(ctx, remove, add); err != nil {
			return err
		}
	}
	if was != nil {
		was.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if set == nil {
		delete(c.sets, name)
	} else {
		c.sets[name] = set
	}
	return nil
}
