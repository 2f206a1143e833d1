// Package customresources serves the kinds that CustomResourceDefinitions define. It updates the catalog and the status of the
// definitions, and deletes the objects of definitions that are being deleted.
//
// It may import kind, kind/custom, client and reconcile/engine. It is part of the server rather than a reconciler because it changes the
// catalog. Its invariants: a definition is Established only once its kind is served, and no definition blocks another.
package customresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/kind/custom"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
	"github.com/coracle-dev/coracle/pkg/run"
)

// Config configures a Controller.
type Config struct {
	// Client may read and write everything. Required.
	Client client.Interface
	// Kinds is the catalog to which the kinds are added. Required.
	Kinds *kind.Catalog
	// Webhooks resolves the services of conversion webhooks; if nil, only webhooks with URLs can be called.
	Webhooks custom.Webhooks
	// Log is slog.Default() if nil.
	Log *slog.Logger
}

// Validate checks a Config.
func (c Config) Validate() error {
	if c.Client == nil || c.Kinds == nil {
		return errors.New("customresources: Client and Kinds are required")
	}
	return nil
}

// Controller is the component "customresources". It is ready once the kinds of all stored definitions are served.
type Controller struct {
	cfg   Config
	maker *custom.Maker
	ready chan struct{}

	mu       sync.Mutex
	sets     map[string]*custom.Set      // the served definitions, by name
	builtin  map[string]custom.Names     // names of built-in kinds, by group
	groups   map[string]map[string]claim // names of definitions, by group and definition
	emptying map[string]bool             // definitions waiting for the deletion of their objects
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
	c := &Controller{cfg: cfg, maker: custom.NewMaker(cfg.Webhooks), ready: make(chan struct{}), sets: map[string]*custom.Set{},
		builtin: map[string]custom.Names{}, groups: map[string]map[string]claim{}, emptying: map[string]bool{}}
	for _, r := range cfg.Kinds.Table().All() {
		names := c.builtin[r.Group]
		names.Add(apiextensionsv1.CustomResourceDefinitionNames{Plural: r.Plural, Singular: r.Singular, ShortNames: r.ShortNames, Kind: r.Kind, ListKind: r.ListGVK().Kind})
		c.builtin[r.Group] = names
	}
	return c, nil
}

// Name implements run.Component.
func (c *Controller) Name() string { return "customresources" }

// Ready implements run.Component.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Run implements run.Component.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.load(ctx); err != nil {
		return err
	}
	close(c.ready)
	defer c.watching.Wait()
	follow := func(f func(context.Context)) { c.watching.Go(func() { f(ctx) }) }
	r := &engine.Reconciler{
		Name: "customresourcedefinition", Workers: 1, // one at a time: the first definition gets a name
		Watches: []engine.Watch{{Object: &apiextensionsv1.CustomResourceDefinition{}}},
		Writes:  []engine.Write{{Object: &apiextensionsv1.CustomResourceDefinition{}, Parts: []engine.Part{engine.Status, engine.Finalizers}}},
		New:     func(env engine.Env) engine.Func { return (&reconciler{c, env, follow}).reconcile },
	}
	return engine.Run(ctx, engine.Config{ClientFor: func(string) client.Interface { return c.cfg.Client }, Log: c.cfg.Log}, []*engine.Reconciler{r}, func() {})
}

// loadPage is how many definitions are read at once: as Go types, a large one takes many megabytes.
const loadPage = 25

// load serves all stored definitions that were accepted earlier, in one change of the catalog.
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
			c.remember(crd)
			if !accepted(crd) {
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
	// One of them cannot be served: add them one by one.
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

// claim is the set of names that a definition holds in its group.
type claim struct {
	names   apiextensionsv1.CustomResourceDefinitionNames
	waiting bool // for names that other definitions hold
}

// remember records the names that a definition holds, and reports whether it released names that others may be waiting for.
func (c *Controller) remember(crd *apiextensionsv1.CustomResourceDefinition) (released bool) {
	group := c.groups[crd.Spec.Group]
	if group == nil {
		group = map[string]claim{}
		c.groups[crd.Spec.Group] = group
	}
	was, known := group[crd.Name]
	group[crd.Name] = claim{*crd.Status.AcceptedNames.DeepCopy(), !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted)}
	return known && !custom.SameNames(was.names, crd.Status.AcceptedNames)
}

// used returns the names in use in a group.
func (c *Controller) used(group string) custom.Names {
	var names custom.Names
	for name := range c.builtin[group].Resources {
		names.Add(apiextensionsv1.CustomResourceDefinitionNames{ShortNames: []string{name}})
	}
	for name := range c.builtin[group].Kinds {
		names.Add(apiextensionsv1.CustomResourceDefinitionNames{Kind: name})
	}
	for _, held := range c.groups[group] {
		names.Add(held.names)
	}
	return names
}

// serve updates the catalog with the rows of a definition, or removes its rows if crd is nil.
func (c *Controller) serve(ctx context.Context, name string, crd *apiextensionsv1.CustomResourceDefinition) error {
	was := c.sets[name]
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
		if err := c.cfg.Kinds.Change(ctx, remove, add); err != nil {
			return err
		}
	}
	if was != nil {
		was.Close()
	}
	if set == nil {
		delete(c.sets, name)
	} else {
		c.sets[name] = set
	}
	return nil
}
