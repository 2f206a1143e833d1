// Package disruption computes how many pods of each PodDisruptionBudget may be disrupted. It also resets the
// DisruptionTarget condition of pods that were not deleted in time. Its invariant: while the pods of a budget cannot be
// counted, it allows no disruption.
package disruption

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

const account = "disruption-controller"

// New declares the reconciler of budgets.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "disruption", Account: account,
		Watches: []engine.Watch{
			{Object: &policyv1.PodDisruptionBudget{}},
			{Object: &corev1.Pod{}, Map: budgetsOf},
		},
		Reads:  []client.Object{&appsv1.ReplicaSet{}, &appsv1.Deployment{}},
		Writes: []engine.Write{{Object: &policyv1.PodDisruptionBudget{}, Parts: []engine.Part{engine.Status}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env}).reconcile)
		},
	}
}

func budgetsOf(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	var all policyv1.PodDisruptionBudgetList
	if env.Cache.List(ctx, &all, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	var out []engine.Request
	for i := range all.Items {
		b := &all.Items[i]
		s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && s.Matches(labels.Set(o.GetLabels())) {
			out = append(out, engine.RequestFor(b.Namespace, b.Name))
		}
	}
	if len(out) > 1 && o.GetDeletionTimestamp() == nil {
		env.Events.Event(o, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", o.GetNamespace(), o.GetName(),
			out[0].Name)
	}
	return out
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, b *policyv1.PodDisruptionBudget) (engine.Result, error) {
	now := r.Now()
	a, err := r.plan(ctx, b)
	if err != nil {
		r.Log.Warn("could not count the pods of a disruption budget", "budget", b.Namespace+"/"+b.Name, "error", err)
		a = Actions{Status: Failed(b, err, now)}
	}
	for _, p := range a.Overdue {
		r.Events.Event(p, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't",
			b.Namespace, b.Name)
	}
	return engine.Result{RequeueAfter: a.Again}, engine.SetStatus(ctx, r.Client, b, &b.Status, a.Status)
}

func (r *reconciler) plan(ctx context.Context, b *policyv1.PodDisruptionBudget) (Actions, error) {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return Actions{}, err
	}
	var list corev1.PodList
	if err := r.Cache.List(ctx, &list, client.InNamespace(b.Namespace), client.MatchingLabelsSelector{Selector: s}); err !=
		nil {
		r.Events.Event(b, corev1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return Actions{}, err
	}
	o := Observed{Budget: b, Pods: engine.Pointers(list.Items)}
	if len(o.Pods) == 0 {
		r.Events.Event(b, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	if NeedsScale(b) {
		var unmanaged bool
		if o.Expected, unmanaged, err = r.expected(ctx, o.Pods); err != nil {
			r.Events.Event(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
				"Failed to calculate the number of expected pods: %v", err)
			return Actions{}, err
		}
		if unmanaged {
			r.Events.Event(b, corev1.EventTypeWarning, "UnmanagedPods",
				"Pods selected by this PodDisruptionBudget (selector: %v) were found "+
					"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in "+
					"undefined behavior. "+
					"To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
				b.Spec.Selector)
		}
	}
	a, err := Plan(o, r.Now())
	if err != nil {
		r.Events.Event(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: %v", err)
	}
	return a, err
}

// expected returns the sum of the scales of the pods' controllers. unmanaged means that some pods have no controller.
func (r *reconciler) expected(ctx context.Context, pods []*corev1.Pod) (total int64, unmanaged bool, err error) {
	scales := map[types.UID]int32{}
	asked := map[types.UID]bool{}
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			unmanaged = true
			continue
		}
		if asked[ref.UID] {
			continue
		}
		asked[ref.UID] = true
		uid, n, err := r.controller(ctx, ref, p.Namespace)
		if err != nil {
			return 0, false, err
		}
		if uid == "" {
			return 0, false, fmt.Errorf("found no controllers for pod %q", p.Name)
		}
		scales[uid] = n
	}
	for _, n := range scales {
		total += int64(n)
	}
	return total, unmanaged, nil
}

// controller returns the UID and scale of a pod's controller, or of the Deployment that controls it. The UID is
// empty if the controller does not exist.
func (r *reconciler) controller(ctx context.Context, ref *metav1.OwnerReference,
	namespace string) (types.UID, int32, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, err
	}
	if ref.Kind == "ReplicaSet" && gv.Group == appsv1.GroupName {
		if d := r.deployment(ctx, ref, namespace); d != nil {
			return d.UID, replicas(d.Spec.Replicas), nil
		}
	}
	mapping, err := r.Client.RESTMapper().RESTMapping(gv.WithKind(ref.Kind).GroupKind(), gv.Version)
	if err != nil {
		return "", 0, err
	}
	scale, err := engine.Scale(ctx, r.Client, mapping.GroupVersionKind, client.ObjectKey{
		Namespace: namespace, Name: ref.Name,
	})
	switch {
	case errors.Is(err, engine.ErrNoScale):
		return "", 0, fmt.Errorf("%s does not implement the scale subresource", mapping.Resource.GroupResource())
	case apierrors.IsNotFound(err):
		return "", 0, nil
	case err != nil:
		return "", 0, err
	case scale.UID != ref.UID:
		return "", 0, nil
	}
	return scale.UID, scale.Spec.Replicas, nil
}

func (r *reconciler) deployment(ctx context.Context, ref *metav1.OwnerReference, namespace string) *appsv1.Deployment {
	var rs appsv1.ReplicaSet
	if r.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, &rs) != nil || rs.UID != ref.UID {
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(&rs)
	if owner == nil || owner.Kind != "Deployment" {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != appsv1.GroupName {
		return nil
	}
	var d appsv1.Deployment
	if r.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &d) != nil || d.UID != owner.UID {
		return nil
	}
	return &d
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
