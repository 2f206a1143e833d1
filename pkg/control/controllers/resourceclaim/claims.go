// Package resourceclaim creates the resource claims of pods from templates, and releases devices that pods no longer
// use (KEP-4381). Its invariant: a claim is deallocated only when no pod uses it. A pod uses its claims until it has
// ended, or until the API server confirms that it is deleted.
package resourceclaim

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// NewRelease declares the reconciler of claims. It removes the reservations of ended pods, deallocates unreserved
// claims, and deletes generated claims whose pod is done.
func NewRelease() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "resource-claim-release", Account: "resource-claim-controller", Workers: 2,
		Watches: []engine.Watch{
			{Object: &resourcev1.ResourceClaim{}},
			{Object: &corev1.Pod{}, Event: claimsOfPod},
		},
		Writes: []engine.Write{
			{Object: &resourcev1.ResourceClaim{}, Parts: []engine.Part{engine.Status, engine.Finalizers, engine.Delete}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Status}}, // a dry run, to ask whether it exists
		},
		Indexes: []engine.Index{engine.ByController(&resourcev1.ResourceClaim{})},
		New:     func(env engine.Env) engine.Func { return engine.Each(env, (&claims{env}).reconcile) },
	}
}

// claimsOfPod maps a pod that is done or deleted to its claims, including generated ones that its status may not
// name yet.
func claimsOfPod(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	p, ok := is.(*corev1.Pod)
	if is == nil {
		p, ok = was.(*corev1.Pod)
	}
	if !ok || is != nil && !done(p) {
		return nil
	}
	var out []engine.Request
	var made resourcev1.ResourceClaimList
	if err := env.ByIndex(ctx, &made, p.Namespace, engine.ControllerIndex, string(p.UID)); err != nil {
		env.Log.Warn("could not list the claims of a pod", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
	for i := range made.Items {
		out = append(out, engine.RequestFor(p.Namespace, made.Items[i].Name))
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil { // created by the scheduler
		out = append(out, engine.RequestFor(p.Namespace, s.ResourceClaimName))
	}
	for name := range resourceclaim.PodClaims(p) {
		out = append(out, engine.RequestFor(p.Namespace, name))
	}
	return out
}

// done reports whether a pod no longer runs and never will.
func done(p *corev1.Pod) bool {
	return podstate.Ended(p) || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// Release is what to do with a claim.
type Release struct {
	// ReservedFor are the remaining reservations. It is valid if Unreserve is set.
	Unreserve   bool
	ReservedFor []resourcev1.ResourceClaimConsumerReference
	Deallocate  bool
	Unprotect   bool // remove the finalizer
	Delete      bool
}

// PlanClaim returns what to do with a claim. uses reports whether the pod with that name and UID exists and needs
// claims.
func PlanClaim(c *resourcev1.ResourceClaim, uses func(name string, uid types.UID) (bool, error)) (Release, error) {
	var out Release
	for _, ref := range c.Status.ReservedFor {
		keep := true
		if ref.APIGroup == "" && ref.Resource == "pods" {
			var err error
			if keep, err = uses(ref.Name, ref.UID); err != nil {
				return Release{}, err
			}
		}
		if keep {
			out.ReservedFor = append(out.ReservedFor, ref)
		}
	}
	out.Unreserve = len(out.ReservedFor) < len(c.Status.ReservedFor)
	if len(out.ReservedFor) > 0 {
		return out, nil
	}
	protected := slices.Contains(c.Finalizers, resourcev1.Finalizer)
	if protected && (out.Unreserve || c.DeletionTimestamp != nil) {
		out.Deallocate, out.Unprotect = c.Status.Allocation != nil, true
	}
	if ref := metav1.GetControllerOfNoCopy(c); ref != nil && ref.APIVersion == "v1" && ref.Kind == "Pod" &&
		c.DeletionTimestamp == nil {
		used, err := uses(ref.Name, ref.UID)
		if err != nil {
			return Release{}, err
		}
		out.Delete = !used
	}
	return out, nil
}

type claims struct{ engine.Env }

func (r *claims) reconcile(ctx context.Context, stored *resourcev1.ResourceClaim) (engine.Result, error) {
	plan, err := PlanClaim(stored, func(name string, uid types.UID) (bool, error) {
		return r.uses(ctx, stored.Namespace, name, uid)
	})
	if err != nil {
		return engine.Result{}, err
	}
	claim := stored.DeepCopy()
	if plan.Unreserve || plan.Deallocate {
		claim.Status.ReservedFor = plan.ReservedFor
		if plan.Deallocate {
			claim.Status.Allocation = nil
		}
		if err := r.Client.Status().Update(ctx, claim); err != nil {
			return engine.Result{}, err
		}
	}
	if plan.Unprotect {
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		if err := r.Client.Update(ctx, claim); err != nil {
			return engine.Result{}, err
		}
	}
	if plan.Delete {
		return engine.Result{}, engine.Remove(ctx, r.Client, claim)
	}
	return engine.Result{}, nil
}

// uses reports whether a pod still needs its claims. If the cache does not have the pod, it asks the API server,
// because the scheduler may have reserved a claim for a pod that has not reached this cache.
func (r *claims) uses(ctx context.Context, namespace, name string, uid types.UID) (bool, error) {
	var p corev1.Pod
	switch err := r.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &p); {
	case err == nil && p.UID == uid:
		return !done(&p), nil
	case err == nil:
		return false, nil // another pod with its name
	case !apierrors.IsNotFound(err):
		return false, err
	}
	gone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
	return exists(engine.Current(ctx, r.Client, gone))
}

// exists interprets the result of a dry-run write of a pod that the cache does not have.
func exists(err error) (bool, error) {
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err == nil, apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return true, errors.New("the pod is not in the cache yet")
	}
	return true, err
}
