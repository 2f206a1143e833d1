// Package bundlecontroller rolls the objects of Bundles out to clusters, cluster by cluster and wave by wave. It
// writes Resources, which pkg/systems/kontrol/controller applies.
//
// Its invariant: a Bundle's status records that a cluster has begun before any of its Resources is written. So a
// crash never makes more clusters change at once than the Bundle allows. A source that cannot be read changes nothing.
package bundlecontroller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/readable"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
)

// New declares the reconciler. fetch reads artifacts. ConfigMaps and Secrets are read only in the namespaces.
func New(fetch Fetcher, namespaces readable.Namespaces) *engine.Reconciler {
	owner := engine.Controller(kontrol.GroupVersion.WithKind("Bundle").GroupKind())
	return &engine.Reconciler{
		Name: "kontrolbundle", Account: "bundle-controller", When: &kontrol.Bundle{}, Workers: 4,
		Watches: []engine.Watch{
			{Object: &kontrol.Bundle{}, Changed: bundleChanged},
			{Object: &kontrol.Resource{}, Map: owner, Batch: bundleOf},
			{Object: &kontrol.Cluster{}, Map: all, Changed: clusterChanged},
			{Object: &corev1.ConfigMap{}, Map: reading(func(s *kontrol.BundleSource, namespace, name string) bool {
				return s.ConfigMap != nil && s.ConfigMap.Namespace == namespace && s.ConfigMap.Name == name
			})},
			{Object: &corev1.Secret{}, Map: reading(func(s *kontrol.BundleSource, namespace, name string) bool {
				return s.Artifact != nil && s.Artifact.PullSecret != nil && s.Artifact.PullSecret.Namespace == namespace &&
					s.Artifact.PullSecret.Name == name
			})},
		},
		Reads: []client.Object{&kontrol.AppliedState{}},
		Writes: []engine.Write{
			{Object: &kontrol.Bundle{}, Parts: []engine.Part{engine.Status}},
			{Object: &kontrol.Resource{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}},
		},
		Indexes: []engine.Index{engine.ByController(&kontrol.Resource{})},
		New: func(env engine.Env) engine.Func {
			return (&bundles{Env: env, sources: newSources(env, fetch, namespaces)}).reconcile
		},
	}
}

// bundleChanged ignores changes of a Bundle's status other than an approval.
func bundleChanged(was, is client.Object) bool {
	return engine.SpecChanged(was, is) || was.GetUID() != is.GetUID() ||
		was.(*kontrol.Bundle).Status.Approved != is.(*kontrol.Bundle).Status.Approved
}

// bundleOf returns the UID of a Resource's Bundle, so that a burst of changes to its Resources is one request.
func bundleOf(o client.Object) string {
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return string(ref.UID)
	}
	return ""
}

func clusterChanged(was, is client.Object) bool {
	a, b := was.(*kontrol.Cluster), is.(*kontrol.Cluster)
	before, _ := state.Reachable(a)
	after, _ := state.Reachable(b)
	return before != after || !labels.Equals(a.Labels, b.Labels) ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil)
}

func all(ctx context.Context, env engine.Env, _ client.Object) []engine.Request {
	return which(ctx, env, func(*kontrol.BundleSource) bool { return true })
}

// reading maps an object to the Bundles that read it.
func reading(reads func(s *kontrol.BundleSource, namespace, name string) bool) func(context.Context, engine.Env,
	client.Object) []engine.Request {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		return which(ctx, env, func(s *kontrol.BundleSource) bool { return reads(s, o.GetNamespace(), o.GetName()) })
	}
}

func which(ctx context.Context, env engine.Env, is func(*kontrol.BundleSource) bool) []engine.Request {
	var list kontrol.BundleList
	if env.Cache.List(ctx, &list) != nil {
		return nil
	}
	return engine.Requests(list.Items, func(b *kontrol.Bundle) bool { return is(&b.Spec.Source) })
}

type bundles struct {
	engine.Env
	sources *sources
}

func (r *bundles) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var cached kontrol.Bundle
	if err := r.Cache.Get(ctx, client.ObjectKey{Name: req.Name}, &cached); err != nil {
		r.sources.forget(req.Name)
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if cached.DeletionTimestamp != nil {
		return engine.Result{}, nil // the garbage collector deletes its Resources
	}
	b := *cached.DeepCopy()
	// A CustomResourceDefinition has neither all defaults nor the full validation.
	kontrol.DefaultBundle(&b)
	if errs := kontrol.ValidateBundle(&b); len(errs) > 0 {
		step := Step{Status: b.Status}
		step.Status.ObservedGeneration = b.Generation
		return r.carryOut(ctx, &b, invalid(step, errs.ToAggregate().Error()))
	}
	got := r.sources.look(ctx, &b)
	step := Step{Status: *b.Status.DeepCopy()}
	step.Status.ObservedGeneration = b.Generation
	switch {
	case got.objects == nil && got.err == nil:
		return engine.Result{}, nil // it is being fetched
	case got.objects == nil:
		step = invalid(step, got.err.Error())
	default:
		o, err := r.observe(ctx, &b, got)
		if err != nil {
			return engine.Result{}, err
		}
		step = Plan(o, r.Now())
		if step.Status.Artifact = got.digest; got.err != nil {
			condition(&step.Status, kontrol.ConditionContentReady, true, "Stale",
				cut("using the content that was read last: "+got.err.Error()))
		}
	}
	return r.carryOut(ctx, &b, step)
}

// observe reads Plan's input from the cache.
func (r *bundles) observe(ctx context.Context, b *kontrol.Bundle, got result) (Observed, error) {
	o := Observed{Bundle: b, Objects: got.objects, Content: got.content, Failed: map[string]string{}}
	var clusters kontrol.ClusterList
	if err := r.Cache.List(ctx, &clusters); err != nil {
		return o, err
	}
	o.Clusters = engine.Pointers(clusters.Items)
	var owned kontrol.ResourceList
	if err := r.ByIndex(ctx, &owned, "", engine.ControllerIndex, string(b.UID)); err != nil {
		return o, err
	}
	for i := range owned.Items {
		res := &owned.Items[i]
		o.Resources = append(o.Resources, res)
		a, err := engine.Find[kontrol.AppliedState](ctx, r.Cache, "", kontrol.StateName(res.Name, res.Spec.ClusterName))
		if err != nil {
			return o, err
		}
		if a != nil && a.State.Status == kontrol.ApplyFailed && a.State.AttemptedGeneration == res.Generation {
			o.Failed[res.Name] = a.State.Error
		}
	}
	return o, nil
}

// carryOut writes the status first. If that fails, it changes no Resource.
func (r *bundles) carryOut(ctx context.Context, b *kontrol.Bundle, step Step) (engine.Result, error) {
	result := engine.Result{RequeueAfter: step.Again}
	if !equality.Semantic.DeepEqual(step.Status, b.Status) {
		next := b.DeepCopy()
		next.Status = step.Status
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
		if len(step.Write) == 0 && len(step.Delete) == 0 && began(&b.Status, &step.Status) {
			return engine.Result{RequeueAfter: 1}, nil
		}
	}
	for _, res := range step.Delete {
		if err := engine.Remove(ctx, r.Client, res); err != nil {
			return engine.Result{}, err
		}
	}
	for _, res := range step.Write {
		if err := r.write(ctx, b, res); err != nil {
			return engine.Result{}, err
		}
	}
	if began(&b.Status, &step.Status) {
		result.RequeueAfter = 1
	}
	return result, nil
}

// began reports whether the step begins the content on another cluster.
func began(was, is *kontrol.BundleStatus) bool {
	before := map[string]string{}
	for _, t := range was.Targets {
		before[t.Name] = t.Content
	}
	for _, t := range is.Targets {
		if t.Content == is.Content && before[t.Name] != t.Content {
			return true
		}
	}
	return false
}

func (r *bundles) write(ctx context.Context, b *kontrol.Bundle, res *kontrol.Resource) error {
	if res.UID != "" {
		return client.IgnoreNotFound(r.Client.Update(ctx, res))
	}
	err := r.Client.Create(ctx, res)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var has kontrol.Resource
	if r.Cache.Get(ctx, client.ObjectKey{Name: res.Name}, &has) == nil && metav1.IsControlledBy(&has, b) {
		return nil // this Bundle's own Resource, which the cache did not show before
	}
	next := b.DeepCopy()
	next.Status = invalid(Step{Status: next.Status},
		fmt.Sprintf("Resource %s exists and does not belong to this Bundle: delete it", res.Name)).Status
	return r.Client.Status().Update(ctx, next)
}
