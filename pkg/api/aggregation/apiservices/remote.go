package apiservices

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/aggregation"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/engine"
)

const (
	// againAvailable is the interval of probes of an available server, which may change or die without an event.
	// Upstream's is 30 s.
	againAvailable = 30 * time.Second
	// againUnavailable is the interval of probes of an unavailable server: upstream's shortest.
	againUnavailable = 5 * time.Second
	// attempts is the number of probes, each to a random endpoint, before a server counts as unavailable.
	attempts = 3
)

// remote is the state of an APIService that refers to a Service.
type remote struct {
	service   *apiregistrationv1.APIService
	backend   *aggregation.Backend
	available bool
	// answered means that described is known, or never will be because requests are not forwarded.
	answered  bool
	described aggregation.Description
}

// publish passes the groups and versions of other servers to the API server.
func (c *Controller) publish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []apiserver.Remote
	for _, r := range c.known {
		p := apiserver.Remote{GroupVersion: versionOf(r.service), Priority: r.service.Spec.GroupPriorityMinimum,
			Resources: r.described.Resources, OpenAPI: r.described.OpenAPI}
		if part := r.described.Swagger; part != nil {
			p.Swagger, p.Paths, p.Definitions = part.Hash, part.Paths, part.Definitions
		}
		if r.available {
			p.Handler = r.backend
		}
		list = append(list, p)
	}
	c.cfg.Server.SetRemotes(list)
	close(c.changed)
	c.changed = make(chan struct{})
}

func versionOf(s *apiregistrationv1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// close closes all idle connections.
func (c *Controller) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.known {
		if r.backend != nil {
			r.backend.Close()
		}
	}
}

// set replaces the state of an APIService. nil removes it.
func (c *Controller) set(name string, r *remote) {
	c.mu.Lock()
	was := c.known[name]
	if r == nil {
		delete(c.known, name)
	} else {
		c.known[name] = r
	}
	c.mu.Unlock()
	if was != nil && was.backend != nil && (r == nil || was.backend != r.backend) {
		was.backend.Close()
	}
	if !is(was, r) {
		c.publish()
	}
}

// is reports whether was and now make no difference to requests and discovery.
func is(was, now *remote) bool {
	if was == nil || now == nil {
		return was == now
	}
	return was.backend == now.backend && was.available == now.available && was.answered == now.answered &&
		was.service.Spec.GroupPriorityMinimum == now.service.Spec.GroupPriorityMinimum &&
		versionOf(was.service) ==
			versionOf(now.service) && was.described.OpenAPI ==
		now.described.OpenAPI && was.described.Swagger.Same(now.described.Swagger) &&
		equality.Semantic.DeepEqual(was.described.Resources, now.described.Resources)
}

// endpoints returns the reconciler that checks APIServices again when their Services or endpoints change.
func (c *Controller) endpoints() *engine.Reconciler {
	changed := func(namespace, name string) []engine.Request {
		c.mu.Lock()
		defer c.mu.Unlock()
		for of, r := range c.known {
			if ref := r.service.Spec.Service; ref.Namespace == namespace && ref.Name == name {
				c.enqueue(engine.RequestFor("", of))
			}
		}
		return nil
	}
	return &engine.Reconciler{
		Name: "apiservice-endpoints", Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.Service{}, Map: func(_ context.Context, _ engine.Env, o ctrl.Object) []engine.Request {
				return changed(o.GetNamespace(), o.GetName())
			}},
			{Object: &discoveryv1.EndpointSlice{}, Map: func(_ context.Context, _ engine.Env, o ctrl.Object) []engine.Request {
				return changed(o.GetNamespace(), o.GetLabels()[discoveryv1.LabelServiceName])
			}},
		},
		New: func(engine.Env) engine.Func {
			return func(context.Context, engine.Request) (engine.Result, error) { return engine.Result{}, nil }
		},
	}
}

func (c *Controller) reconcile(ctx context.Context, env engine.Env, name string, follow func()) (engine.Result, error) {
	stored := &apiregistrationv1.APIService{}
	err := env.Cache.Get(ctx, ctrl.ObjectKey{Name: name}, stored)
	if err != nil && !apierrors.IsNotFound(err) {
		return engine.Result{}, err
	}
	if err != nil || stored.Spec.Service == nil {
		c.set(name, nil)
		return engine.Result{}, nil
	}
	follow()
	c.mu.Lock()
	was := c.known[name]
	c.mu.Unlock()
	now := &remote{service: stored}
	if was != nil {
		now.described, now.answered = was.described, was.answered
		if was.backend != nil && equality.Semantic.DeepEqual(was.service.Spec, stored.Spec) {
			now.backend = was.backend
		}
	}
	condition, again := c.check(ctx, env, now)
	c.set(name, now)
	next := stored.DeepCopy()
	helper.SetAPIServiceCondition(next, condition)
	if !equality.Semantic.DeepEqual(next.Status, stored.Status) {
		if err := env.Client.Status().Update(ctx, next); ctrl.IgnoreNotFound(err) != nil {
			return engine.Result{}, fmt.Errorf("could not update status of APIService %s: %w", name, err)
		}
	}
	return engine.Result{RequeueAfter: again}, nil
}

// check probes the server of an APIService. It returns the condition and the time until the next check. 0 means
// after a change of the Service or its endpoints.
func (c *Controller) check(ctx context.Context, env engine.Env,
	r *remote) (apiregistrationv1.APIServiceCondition, time.Duration) {
	result := func(status apiregistrationv1.ConditionStatus, reason, format string,
		args ...any) apiregistrationv1.APIServiceCondition {
		return apiregistrationv1.APIServiceCondition{
			Type:               apiregistrationv1.Available,
			Status:             status,
			LastTransitionTime: metav1.NewTime(env.Now()),
			Reason:             reason,
			Message:            fmt.Sprintf(format, args...),
		}
	}
	no := func(reason, format string, args ...any) (apiregistrationv1.APIServiceCondition, time.Duration) {
		return result(apiregistrationv1.ConditionFalse, reason, format, args...), 0
	}
	ref := r.service.Spec.Service
	port := int32(443)
	if ref.Port != nil {
		port = *ref.Port
	}
	if _, local := localVersions(c.cfg.Kinds.Table())[r.service.Name]; local {
		r.answered = true
		return no("ServedLocally", "%s is served by this API server, which does not forward it", versionOf(r.service))
	}
	service := &corev1.Service{}
	if err := env.Cache.Get(ctx, ctrl.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, service); apierrors.IsNotFound(
		err) {
		return no("ServiceNotFound", "service/%s in %q is not present", ref.Name, ref.Namespace)
	} else if err != nil {
		return result(apiregistrationv1.ConditionUnknown, "ServiceAccessError",
			"service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err), againUnavailable
	}
	if service.Spec.Type == corev1.ServiceTypeClusterIP {
		i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port })
		if i < 0 {
			return no("ServicePortError", "service/%s in %q is not listening on port %d", ref.Name, ref.Namespace, port)
		}
		endpoints, err := c.cfg.Services.GetEndpointSlices(ref.Namespace, ref.Name)
		switch {
		case err != nil:
			return result(apiregistrationv1.ConditionUnknown, "EndpointsAccessError",
				"service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err), againUnavailable
		case len(endpoints) == 0:
			return no("EndpointsNotFound", "cannot find endpointslices for service/%s in %q", ref.Name, ref.Namespace)
		case !slices.ContainsFunc(endpoints, func(s *discoveryv1.EndpointSlice) bool {
			return ready(s, service.Spec.Ports[i].Name)
		}):
			return no("MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", ref.Name,
				ref.Namespace, service.Spec.Ports[i].Name)
		}
	}
	var err error
	if r.backend == nil {
		r.backend, err = aggregation.New(aggregation.Config{
			GroupVersion: versionOf(r.service), CABundle: r.service.Spec.CABundle,
			Insecure:   r.service.Spec.InsecureSkipTLSVerify,
			ServerName: ref.Name + "." + ref.Namespace + ".svc", Certificate: c.trust.Certificate, Fail: c.cfg.Server.FailRemote,
			Resolve: func() (*url.URL, error) { return c.cfg.Services.ResolveEndpoint(ref.Namespace, ref.Name, port) },
		})
	}
	if err == nil {
		var d aggregation.Description
		for range attempts {
			if d, err = r.backend.Describe(ctx); err == nil || ctx.Err() != nil {
				break
			}
		}
		if err == nil {
			r.available, r.answered, r.described = true, true, d
			return result(apiregistrationv1.ConditionTrue, "Passed", "all checks passed"), againAvailable
		}
	}
	return result(apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck", "%s", err), againUnavailable
}

// ready reports whether a slice has the port and a ready endpoint.
func ready(s *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Ready == nil || *e.Conditions.Ready
	}) &&
		slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == port && p.Port != nil
		})
}
