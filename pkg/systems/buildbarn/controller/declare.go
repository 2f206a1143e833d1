package controller

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
)

const (
	indexSource = "buildbarn.configMap" // parts by the ConfigMap they name
	indexSecret = "buildbarn.secret"    // parts by the Secret they name
	indexHost   = "buildbarn.host"      // parts and Ingresses by host
	indexLabels = "buildbarn.part"      // pods and claims by component and part
)

// Read reads the metrics of a program in the pod with this address.
type Read func(ctx context.Context, address string) (metrics.Families, error)

// New declares the reconcilers of the parts and of farms; read is used for schedulers.
func New(read Read, checker *check.Checker) []*engine.Reconciler {
	return []*engine.Reconciler{
		newPart(part{
			object:  func() buildbarn.Part { return &buildbarn.BuildbarnScheduler{} },
			list:    func() client.ObjectList { return &buildbarn.BuildbarnSchedulerList{} },
			service: true,
		}, checker),
		newPart(part{
			object: func() buildbarn.Part { return &buildbarn.BuildbarnWorker{} },
			list:   func() client.ObjectList { return &buildbarn.BuildbarnWorkerList{} },
			read:   read,
		}, checker),
		newPart(part{
			object:  func() buildbarn.Part { return &buildbarn.BuildbarnStorage{} },
			list:    func() client.ObjectList { return &buildbarn.BuildbarnStorageList{} },
			service: true,
			sets:    true,
		}, checker),
		newPart(part{
			object:  func() buildbarn.Part { return &buildbarn.BuildbarnFrontend{} },
			list:    func() client.ObjectList { return &buildbarn.BuildbarnFrontendList{} },
			service: true,
		}, checker),
		newPart(part{
			object:  func() buildbarn.Part { return &buildbarn.BuildbarnBrowser{} },
			list:    func() client.ObjectList { return &buildbarn.BuildbarnBrowserList{} },
			service: true,
		}, checker),
		newFarm(),
	}
}

type part struct {
	object  func() buildbarn.Part
	list    func() client.ObjectList
	service bool // it has a Service
	sets    bool // its pods belong to a StatefulSet, not a Deployment
	read    Read // reads schedulers' metrics; only workers use it
}

func (k part) kind() string { return kindOf(k.object()) }

func (k part) workload() client.Object {
	if k.sets {
		return &appsv1.StatefulSet{}
	}
	return &appsv1.Deployment{}
}

func newPart(k part, checker *check.Checker) *engine.Reconciler {
	gk := buildbarn.GroupVersion.WithKind(k.kind()).GroupKind()
	mine := named(engine.Controller(gk))
	all := []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}
	hosts := buildbarn.HostOf(k.object()) != ""
	r := &engine.Reconciler{
		Name: strings.ToLower(k.kind()), Workers: 2, When: k.object(), Reads: []client.Object{&appsv1.ReplicaSet{}},
		Watches: []engine.Watch{
			{Object: k.object()},
			{Object: k.workload(), Map: mine},
			{Object: &corev1.ConfigMap{}, Map: k.configured(engine.Controller(gk))},
			{Object: &corev1.Secret{}, Map: k.certified},
			{Object: &corev1.Service{}, Map: k.neighbours, Changed: serviceMatters},
			{Object: &buildbarn.BuildbarnStorage{}, Map: k.neighbours, Changed: engine.SpecChanged},
			{Object: &corev1.Pod{}, Map: labelled(k.object().Component()), Changed: podMatters},
		},
		Writes: []engine.Write{
			{Object: k.object(), Parts: []engine.Part{engine.Status, engine.Finalizers}},
			{Object: k.workload(), Parts: all},
			{Object: &corev1.ConfigMap{}, Parts: all},
		},
		Indexes: []engine.Index{
			{Object: k.object(), Name: indexSource, Values: func(o client.Object) []string {
				if name := o.(buildbarn.Part).Pods().ConfigMapName; name != "" {
					return []string{name}
				}
				return []string{buildbarn.DefaultConfigMap}
			}},
			{Object: k.object(), Name: indexSecret, Values: func(o client.Object) []string {
				if t := o.(buildbarn.Part).Pods().TLS; t != nil {
					return []string{t.SecretName}
				}
				return nil
			}},
			engine.ByController(&corev1.ConfigMap{}), byLabels(&corev1.Pod{}),
		},
	}
	if k.read != nil {
		r.Writes = append(r.Writes, engine.Write{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Metadata, engine.Delete}})
		for _, o := range []client.Object{&buildbarn.BuildbarnScheduler{}, &buildbarn.BuildbarnFrontend{}} {
			r.Watches = append(r.Watches, engine.Watch{Object: o, Map: k.neighbours, Changed: farmMatters})
		}
	}
	if k.outlives() {
		r.Watches = append(r.Watches, engine.Watch{
			Object:  &buildbarn.BuildbarnWorker{},
			Map:     k.siblings,
			Changed: func(_, _ client.Object) bool { return false },
		})
	}
	if k.service {
		r.Watches = append(r.Watches, engine.Watch{Object: &corev1.Service{}, Map: mine})
		r.Writes = append(r.Writes, engine.Write{Object: &corev1.Service{}, Parts: all})
	}
	if hosts {
		r.Watches = append(r.Watches, engine.Watch{
			Object:  &networkingv1.Ingress{},
			Map:     k.hosted(mine),
			Changed: engine.SpecChanged,
		})
		r.Writes = append(r.Writes, engine.Write{Object: &networkingv1.Ingress{}, Parts: all})
		r.Indexes = append(r.Indexes, engine.Index{Object: &networkingv1.Ingress{}, Name: indexHost, Values: ingressHosts},
			engine.Index{
				Object: k.object(),
				Name:   indexHost,
				Values: func(o client.Object) []string { return []string{buildbarn.HostOf(o.(buildbarn.Part))} },
			})
	}
	if k.sets {
		r.Reads = append(r.Reads, &corev1.PersistentVolumeClaim{})
		r.Writes = append(r.Writes, engine.Write{
			Object: &corev1.PersistentVolumeClaim{}, Parts: []engine.Part{engine.Delete},
		})
		r.Indexes = append(r.Indexes, byLabels(&corev1.PersistentVolumeClaim{}))
	}
	r.New = func(env engine.Env) engine.Func {
		return (&reconciler{env, k, hosts, newChecks(env, checker), newLosses()}).reconcile
	}
	return r
}

func byLabels(o client.Object) engine.Index {
	return engine.Index{Object: o, Name: indexLabels, Values: func(o client.Object) []string {
		l := o.GetLabels()
		if l[buildbarn.LabelApp] == "" || l[buildbarn.LabelPart] == "" {
			return nil
		}
		return []string{l[buildbarn.LabelApp] + "/" + l[buildbarn.LabelPart]}
	}}
}

func ingressHosts(o client.Object) (hosts []string) {
	for _, r := range o.(*networkingv1.Ingress).Spec.Rules {
		if r.Host != "" && !slices.Contains(hosts, r.Host) {
			hosts = append(hosts, r.Host)
		}
	}
	return hosts
}

type mapping = func(context.Context, engine.Env, client.Object) []engine.Request

// named maps a child to its controller. Without one, it maps the child to the part of the same name, whose own child
// it may block.
func named(controller mapping) mapping {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		if list := controller(ctx, env, o); len(list) > 0 {
			return list
		}
		return []engine.Request{engine.RequestFor(o.GetNamespace(), o.GetName())}
	}
}

func (k part) indexed(ctx context.Context, env engine.Env, namespace, index, value string) []engine.Request {
	list := k.list()
	if env.ByIndex(ctx, list, namespace, index, value) != nil {
		return nil // the cache is stopping
	}
	return engine.RequestsIn(list, nil)
}

// outlives reports whether the part must outlive workers, which need it to end their actions.
func (k part) outlives() bool {
	return k.kind() == "BuildbarnScheduler" || k.kind() == "BuildbarnStorage"
}

// siblings maps workers to the parts of this kind in the same farm.
func (k part) siblings(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	farm := metav1.GetControllerOfNoCopy(o)
	list := k.list()
	if farm == nil || env.Cache.List(ctx, list, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	return engine.RequestsIn(list, func(p client.Object) bool {
		ref := metav1.GetControllerOfNoCopy(p)
		return ref != nil && ref.UID == farm.UID
	})
}

// configured maps a ConfigMap to the part that owns it as a copy, and to the parts that name it.
func (k part) configured(controller mapping) mapping {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		return append(controller(ctx, env, o), k.indexed(ctx, env, o.GetNamespace(), indexSource, o.GetName())...)
	}
}

func (k part) certified(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	return k.indexed(ctx, env, o.GetNamespace(), indexSecret, o.GetName())
}

// hosted maps an Ingress to its part, and to all parts that want one of its hosts.
func (k part) hosted(mine mapping) mapping {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		out := mine(ctx, env, o)
		for _, host := range ingressHosts(o) {
			out = append(out, k.indexed(ctx, env, "", indexHost, host)...)
		}
		return out
	}
}

func labelled(component string) mapping {
	return func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
		if l := o.GetLabels(); l[buildbarn.LabelApp] == component && l[buildbarn.LabelPart] != "" {
			return []engine.Request{engine.RequestFor(o.GetNamespace(), l[buildbarn.LabelPart])}
		}
		return nil
	}
}

// podMatters reports whether a pod's change affects the reason why it does not start.
func podMatters(was, is client.Object) bool {
	a, b := was.(*corev1.Pod), is.(*corev1.Pod)
	if a.Labels[buildbarn.LabelPart] == "" && b.Labels[buildbarn.LabelPart] == "" {
		return false
	}
	x, _ := stuck(a)
	y, _ := stuck(b)
	return x != y || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil)
}
