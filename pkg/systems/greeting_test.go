package systems_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

var greetings = schema.GroupVersion{Group: "toy.example.org", Version: "v1"}

// Greeting is the kind of a system that is defined only in this test.
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Name string `json:"name"`
	} `json:"spec"`
	Status struct {
		Text string `json:"text,omitempty"`
	} `json:"status,omitempty"`
}

type GreetingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Greeting `json:"items"`
}

func (g *Greeting) DeepCopyObject() runtime.Object {
	out := *g
	out.ObjectMeta = *g.ObjectMeta.DeepCopy()
	return &out
}

func (l *GreetingList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = make([]Greeting, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*Greeting)
	}
	return &out
}

// greeting returns the system: a kind and a reconciler.
func greeting() system.System {
	kind := own.Declare(own.Definition[*Greeting]{
		Kind: greetings.WithKind("Greeting"), Plural: "greetings",
		New:     func() *Greeting { return &Greeting{} },
		NewList: func() ctrl.ObjectList { return &GreetingList{} },
		Validate: func(g *Greeting) (errs field.ErrorList) {
			if g.Spec.Name == "" {
				errs = append(errs, field.Required(field.NewPath("spec", "name"), "whom to greet"))
			}
			return errs
		},
		Columns: []own.Column[*Greeting]{{Name: "Text", Cell: func(g *Greeting) any { return g.Status.Text }}},
		View:    true, Edit: true,
	}, func(g *Greeting) *struct {
		Text string `json:"text,omitempty"`
	} {
		return &g.Status
	})
	return system.System{
		Name:      "greeting",
		Extension: own.Extension{Kinds: []own.Kind{kind}},
		Reconcilers: func(system.Controllers) []*engine.Reconciler {
			return []*engine.Reconciler{{
				Name:    "greeting",
				Watches: []engine.Watch{{Object: &Greeting{}}},
				Writes:  []engine.Write{{Object: &Greeting{}, Parts: []engine.Part{engine.Status}}},
				New: func(env engine.Env) engine.Func {
					return func(ctx context.Context, req engine.Request) (engine.Result, error) {
						var g Greeting
						if err := env.Client.Get(ctx, req.NamespacedName, &g); err != nil {
							return engine.Result{}, ctrl.IgnoreNotFound(err)
						}
						want := "hello, " + g.Spec.Name
						if g.Status.Text == want {
							return engine.Result{}, nil
						}
						now := g.DeepCopyObject().(*Greeting)
						now.Status.Text = want
						return engine.Result{}, env.Client.Status().Update(ctx, now)
					}
				},
			}}
		},
	}
}

// TestASystemFromOutside checks that one value adds a system: its kind is validated, stored and watched, and its roles
// and reconciler work.
func TestASystemFromOutside(t *testing.T) {
	list := append(systems.All(), greeting())
	e := registrytest.Start(t, registrytest.Options{Kinds: builtin.Table(list.Extensions()...), NoPlugins: true})
	admin := e.As("admin")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	started := make(chan struct{})
	only := systems.List{list[len(list)-1]}
	go func() {
		ended <- engine.Run(ctx,
			engine.Config{ClientFor: func(string) client.Interface { return admin }, Log: slog.New(slog.DiscardHandler)},
			only.Reconcilers(system.Controllers{}), func() { close(started) })
	}()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	select {
	case <-started:
	case err := <-ended:
		require.NoError(t, err)
	}
	require.NoError(t, admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	err := admin.Create(ctx, &Greeting{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}})
	require.ErrorContains(t, err, "spec.name: Required value: whom to greet")
	g := &Greeting{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}
	g.Spec.Name = "world"
	require.NoError(t, admin.Create(ctx, g))
	w, err := admin.Watch(ctx, &GreetingList{})
	require.NoError(t, err)
	defer w.Stop()
	for event := range w.ResultChan() {
		if got, ok := event.Object.(*Greeting); ok && got.Status.Text != "" {
			g = got
			break
		}
	}
	table, err := e.Kinds.Table().ByGVK(greetings.WithKind("Greeting")).Table.ConvertToTable(ctx, g, nil)
	require.NoError(t, err)
	require.Equal(t, []any{"a", "hello, world"}, table.Rows[0].Cells)
	rules := map[string][]rbacv1.PolicyRule{}
	for _, o := range builtin.Roles(list.Accounts(), list.Extensions()...) {
		if role, ok := o.(*rbacv1.ClusterRole); ok {
			rules[role.Name] = role.Rules
		}
	}
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	require.Equal(t, []rbacv1.PolicyRule{
		rule("", "events", "create", "patch", "update"), rule(greetings.Group, "greetings", "get", "list", "watch"),
		rule(greetings.Group, "greetings/status", "patch", "update"),
	}, rules["system:controller:greeting-controller"], "the rules follow from the reconciler's declaration")
	require.Contains(t, rules["system:coracle:aggregate-to-view"],
		rule(greetings.Group, "greetings", "get", "list", "watch"))
	require.Contains(t, rules["system:coracle:aggregate-to-edit"],
		rule(greetings.Group, "greetings", "create", "delete", "deletecollection", "patch", "update"))
	require.NotContains(t, fmt.Sprint(rules["system:coracle:aggregate-to-view"]), "kontrol.coracle.dev",
		"Resources may contain Secrets")
}
