// Package loadbalancer assigns addresses to services of type LoadBalancer: from a pool, or the nodes' addresses. The
// nodes' proxies do the rest (pkg/node/proxy). Its invariant: the services' status is the only record of allocations.
// One request plans all of them, so no address is assigned twice.
package loadbalancer

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// Config configures the reconciler.
type Config struct {
	Pool []config.AddressRange
	// Reserved are TCP ports that the nodes themselves use.
	Reserved []uint16
	// IngressPorts are in use on the nodes while there is an Ingress of a class with ingressController.
	IngressPorts []uint16
	// Disabled: services get no addresses and lose the ones that Coracle assigned.
	Disabled bool
}

// index finds services with type LoadBalancer or the condition.
const index = "loadbalancer"

// New declares the reconciler. Its only request is for all services.
func New(c Config) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "loadbalancer", Account: "service-controller", Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.Service{}, Event: services},
			{Object: &corev1.Node{}, Event: nodes},
			{Object: &discoveryv1.EndpointSlice{}, Event: endpoints},
			{Object: &networkingv1.Ingress{}, Event: ingresses},
		},
		Reads:  []client.Object{&networkingv1.IngressClass{}},
		Writes: []engine.Write{{Object: &corev1.Service{}, Parts: []engine.Part{engine.Status}}},
		Indexes: []engine.Index{{Object: &corev1.Service{}, Name: index, Values: func(o client.Object) []string {
			if s, ok := o.(*corev1.Service); ok && concerned(s) {
				return []string{index}
			}
			return nil
		}}},
		New: func(env engine.Env) engine.Func {
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				return engine.Result{}, c.reconcile(ctx, env)
			}
		},
	}
}

// ingressController is the controller of pkg/node/ingress.
const ingressController = "coracle.dev/ingress"

// ingresses requests a plan when an Ingress is created or deleted, because the first and last one change the
// nodes' ports.
func ingresses(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	var list corev1.ServiceList
	if was != nil && is != nil || env.ByIndex(ctx, &list, "", index, index) == nil && len(list.Items) == 0 {
		return nil
	}
	return all
}

func ingress(ctx context.Context, env engine.Env) (bool, error) {
	var list networkingv1.IngressList
	var classes networkingv1.IngressClassList
	if err := errors.Join(env.Cache.List(ctx, &list), env.Cache.List(ctx, &classes)); err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(i networkingv1.Ingress) bool {
		return i.Spec.IngressClassName != nil && slices.ContainsFunc(classes.Items, func(c networkingv1.IngressClass) bool {
			return c.Name == *i.Spec.IngressClassName && c.Spec.Controller == ingressController
		})
	}), nil
}

var all = []engine.Request{engine.RequestFor("", "services")}

func concerned(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer || meta.FindStatusCondition(s.Status.Conditions, Condition) != nil
}

func services(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Service)
	after, _ := is.(*corev1.Service)
	if before != nil && concerned(before) || after != nil && concerned(after) {
		return all
	}
	return nil
}

// nodes requests a plan when a node's addresses, readiness or eligibility change. It ignores heartbeats.
func nodes(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	after, _ := is.(*corev1.Node)
	if before != nil && after != nil && equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses) &&
		len(serving([]*corev1.Node{before})) == len(serving([]*corev1.Node{
			after,
		})) && nodestate.Ready(before) == nodestate.Ready(after) {
		return nil
	}
	var list corev1.ServiceList
	if err := env.ByIndex(ctx, &list, "", index, index); err == nil && len(list.Items) == 0 {
		return nil
	}
	return all
}

// endpoints requests a plan only for services with externalTrafficPolicy Local.
func endpoints(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	o := is
	if o == nil {
		o = was
	}
	var s corev1.Service
	key := client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[discoveryv1.LabelServiceName]}
	if key.Name == "" || env.Cache.Get(ctx, key, &s) != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return nil
	}
	return all
}

func (c Config) reconcile(ctx context.Context, env engine.Env) error {
	var list corev1.ServiceList
	if err := env.ByIndex(ctx, &list, "", index, index); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return nil
	}
	var machines corev1.NodeList
	if err := env.Cache.List(ctx, &machines); err != nil {
		return err
	}
	o := Observed{
		Pool: c.Pool, Reserved: c.Reserved, Disabled: c.Disabled,
		Services: engine.Pointers(list.Items), Nodes: engine.Pointers(machines.Items),
	}
	if served, err := ingress(ctx, env); err != nil {
		return err
	} else if served {
		o.IngressPorts = c.IngressPorts
	}
	var errs []error
	o.Local = func(s *corev1.Service) map[string]bool {
		var slices discoveryv1.EndpointSliceList
		if err := env.Cache.List(ctx, &slices, client.InNamespace(s.Namespace), client.MatchingLabels{
			discoveryv1.LabelServiceName: s.Name,
		}); err != nil {
			errs = append(errs, err)
		}
		return Local(slices.Items)
	}
	changes := Plan(o, env.Now())
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, change := range changes {
		err := env.Client.Status().Patch(ctx, change.Next,
			client.MergeFromWithOptions(change.Was, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, err)
			continue
		}
		for _, e := range change.Events {
			env.Events.EventBy("service-controller", change.Was, e.Kind, e.Reason, "%s", e.Message)
		}
	}
	return errors.Join(errs...)
}

// Local returns the nodes with ready endpoints.
func Local(slices []discoveryv1.EndpointSlice) map[string]bool {
	found := map[string]bool{}
	for i := range slices {
		for _, e := range slices[i].Endpoints {
			if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				found[*e.NodeName] = true
			}
		}
	}
	return found
}
