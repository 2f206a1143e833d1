// Package flowcontrol configures this server's fairness with the FlowSchema and PriorityLevelConfiguration objects,
// creates the default objects, and writes the status of flow schemas.
//
// It is part of each server rather than a reconciler because each server has its own fairness. Its invariant: the
// stored objects configure fairness before the first request is served.
package flowcontrol

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// Upstream's field managers.
const (
	producer = ctrl.FieldOwner("api-priority-and-fairness-config-producer-v1")
	consumer = ctrl.FieldOwner("api-priority-and-fairness-config-consumer-v1")
)

// Config configures a Controller. All fields but After are required.
type Config struct {
	// Client has all permissions.
	Client client.Interface
	// Configure is called with the objects at the start and after each change. It must not change them.
	Configure func([]*flowcontrolv1.PriorityLevelConfiguration, []*flowcontrolv1.FlowSchema)
	Log       *slog.Logger
	// After, if not nil, is closed when the controller may write objects, which must not delay the start of the
	// server.
	After <-chan struct{}
}

// Validate checks a Config.
func (c Config) Validate() error {
	if c.Client == nil || c.Configure == nil || c.Log == nil {
		return errors.New("flowcontrol: Client, Configure and Log are required")
	}
	return nil
}

// Controller is the component "flowcontrol". It is ready once it has read the stored objects. It creates missing
// ones later.
type Controller struct {
	cfg Config
	run.Readiness
}

var _ run.Component = (*Controller)(nil)

// New creates a controller. It starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Controller{cfg: cfg}, nil
}

// Name implements run.Component.
func (c *Controller) Name() string { return "flowcontrol" }

// Run implements run.Component.
func (c *Controller) Run(ctx context.Context) error {
	if _, err := c.configure(ctx, c.cfg.Client); err != nil {
		return fmt.Errorf("could not read the configuration of priority and fairness: %w", err)
	}
	c.SetReady()
	if c.cfg.After != nil {
		select {
		case <-c.cfg.After:
		case <-ctx.Done():
			return nil
		}
	}
	everything := engine.RequestFor("", "cluster")
	all := func(context.Context, engine.Env, ctrl.Object) []engine.Request { return []engine.Request{everything} }
	r := &engine.Reconciler{
		Name: "flowcontrol", Workers: 1,
		Watches: []engine.Watch{
			{Object: &flowcontrolv1.FlowSchema{}, Map: all},
			{Object: &flowcontrolv1.PriorityLevelConfiguration{}, Map: all},
		},
		Writes: []engine.Write{
			{
				Object: &flowcontrolv1.FlowSchema{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata, engine.Status},
			},
			{
				Object: &flowcontrolv1.PriorityLevelConfiguration{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata},
			},
		},
		New: func(env engine.Env) engine.Func {
			env.Enqueue(everything, 0)
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				if err := ensure(ctx, env.Client); err != nil {
					return engine.Result{}, err
				}
				now, err := c.configure(ctx, env.Client)
				if err != nil {
					return engine.Result{}, err
				}
				return engine.Result{}, now.writeStatus(ctx, env.Client, env.Now())
			}
		},
	}
	return engine.Run(ctx, engine.Config{ClientFor: func(string) client.Interface { return c.cfg.Client }, Log: c.cfg.Log},
		[]*engine.Reconciler{r}, func() {})
}

// objects is the stored configuration.
type objects struct {
	levels  []*flowcontrolv1.PriorityLevelConfiguration
	schemas []*flowcontrolv1.FlowSchema
}

// configure applies the stored objects. If none exist, the built-in configuration stays.
func (c *Controller) configure(ctx context.Context, reader ctrl.Reader) (objects, error) {
	var levels flowcontrolv1.PriorityLevelConfigurationList
	var schemas flowcontrolv1.FlowSchemaList
	if err := errors.Join(reader.List(ctx, &levels), reader.List(ctx, &schemas)); err != nil {
		return objects{}, err
	}
	o := objects{engine.Pointers(levels.Items), engine.Pointers(schemas.Items)}
	if len(o.levels)+len(o.schemas) > 0 {
		c.cfg.Configure(o.levels, o.schemas)
	}
	return o, nil
}

// ensure creates missing bootstrap objects and resets changed ones.
func ensure(ctx context.Context, c ctrl.Client) error {
	g, ctx := errgroup.WithContext(ctx) // concurrent writes share the store's fsync
	for i, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{
		bootstrap.SuggestedPriorityLevelConfigurations, bootstrap.MandatoryPriorityLevelConfigurations,
	} {
		for _, want := range list {
			g.Go(func() error { return ensureObject(ctx, c, want, i == 1, builtin.RevisedPriorityLevel) })
		}
	}
	for i, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.SuggestedFlowSchemas, bootstrap.MandatoryFlowSchemas} {
		for _, want := range list {
			g.Go(func() error { return ensureObject(ctx, c, want, i == 1, builtin.RevisedFlowSchema) })
		}
	}
	return g.Wait()
}

func ensureObject[T any, P interface {
	*T
	ctrl.Object
}](ctx context.Context, c ctrl.Client, want P, mandatory bool, revised func(have, want P,
	mandatory bool) (P, error)) error {
	have := P(new(T))
	err := c.Get(ctx, ctrl.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		if err = c.Create(ctx, want.DeepCopyObject().(ctrl.Object), producer); apierrors.IsAlreadyExists(err) {
			return nil // another server created it
		}
	} else if err == nil {
		var next P
		if next, err = revised(have, want, mandatory); next != nil && err == nil {
			if err = c.Update(ctx, next, producer); apierrors.IsConflict(err) {
				return nil // the event of the other change retries
			}
		}
	}
	if err != nil {
		return fmt.Errorf("could not ensure %T %s: %w", want, want.GetName(), err)
	}
	return nil
}

// writeStatus writes the condition Dangling of the flow schemas for which it changed.
func (o objects) writeStatus(ctx context.Context, c ctrl.Client, now time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, s := range o.schemas {
		if next := o.withStatus(s, now); next != nil {
			g.Go(func() error {
				err := c.Status().Update(ctx, next, consumer)
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // the event of the other change retries
					return fmt.Errorf("could not set a status.condition for FlowSchema %s: %w", next.Name, err)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// withStatus returns the flow schema with its new condition, or nil if it did not change.
func (o objects) withStatus(s *flowcontrolv1.FlowSchema, now time.Time) *flowcontrolv1.FlowSchema {
	level := s.Spec.PriorityLevelConfiguration.Name
	want := flowcontrolv1.FlowSchemaCondition{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionTrue, Reason: "NotFound",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no "+
			"such object", level),
	}
	for _, l := range o.levels {
		if l.Name == level {
			want.Status, want.Reason = flowcontrolv1.ConditionFalse, "Found"
			want.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists",
				level)
		}
	}
	next := s.DeepCopy()
	for i, have := range next.Status.Conditions {
		if have.Type != want.Type {
			continue
		}
		if have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
			return nil
		}
		want.LastTransitionTime = metav1.NewTime(now)
		next.Status.Conditions[i] = want
		return next
	}
	want.LastTransitionTime = metav1.NewTime(now)
	next.Status.Conditions = append(next.Status.Conditions, want)
	return next
}
