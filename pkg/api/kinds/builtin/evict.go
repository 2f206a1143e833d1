package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/policy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// evictAttempts limits how often an eviction starts over because its pod changed, if no budget applies. As upstream.
const evictAttempts = 20

// evict deletes a pod if its disruption budget allows it, like upstream's pkg/registry/core/pod/storage/eviction.go.
func evict(_ context.Context, on kind.Parent, obj runtime.Object, o metav1.CreateOptions) (runtime.Object, error) {
	_, _, name := on.Target()
	in, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, unexpected(on, obj, "eviction")
	}
	if in.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	del, err := evictionDeleteOptions(in, o)
	if err != nil {
		return nil, err
	}
	if err := on.Admit(&policy.Eviction{ObjectMeta: in.ObjectMeta, DeleteOptions: in.DeleteOptions}, &o); err != nil {
		return nil, err
	}
	pinned := del.Preconditions != nil && del.Preconditions.ResourceVersion != nil // the client set the precondition
	var pod *corev1.Pod
	for attempt := 1; ; attempt++ {
		stored, err := on.Current()
		if err != nil {
			return nil, err
		}
		if pod, ok = stored.(*corev1.Pod); !ok {
			return nil, unexpected(on, stored, "eviction")
		}
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
			pod.DeletionTimestamp != nil
		if !ended && pod.Status.Phase != corev1.PodPending {
			break
		}
		// Deleting this pod disrupts nothing, so no budget applies. The precondition makes sure that a pending pod
		// is still pending.
		once := del
		if !ended && !pinned {
			once = atRevision(del, pod)
		}
		err = disrupt(on, once)
		if pinned || !apierrors.IsConflict(err) || attempt == evictAttempts {
			return nil, err
		}
	}
	budget, counted, err := guarding(on, pod)
	if err != nil {
		return nil, err
	}
	once := del
	switch {
	case counted:
		if err := spend(on, budget, len(del.DryRun) > 0); err != nil {
			return nil, err
		}
	case budget != nil: // the budget ignores an unhealthy pod, which must still be unhealthy when it is deleted
		once = atRevision(del, pod)
	}
	err = disrupt(on, once)
	if apierrors.IsConflict(err) && budget != nil && !counted && !pinned {
		return nil, tryLater(budget.Name)
	}
	return nil, err
}

func evictionDeleteOptions(in *policyv1.Eviction, o metav1.CreateOptions) (metav1.DeleteOptions, error) {
	d := in.DeleteOptions
	if d == nil {
		return metav1.DeleteOptions{DryRun: o.DryRun}, nil
	}
	if d.IgnoreStoreReadErrorWithClusterBreakingPotential != nil && *d.IgnoreStoreReadErrorWithClusterBreakingPotential {
		return metav1.DeleteOptions{}, apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(),
			in.Name, field.ErrorList{
				field.Invalid(field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true,
					"can not be set for pod eviction, try after removing the option")})
	}
	if len(d.DryRun) > 0 && len(o.DryRun) > 0 && !slices.Equal(d.DryRun, o.DryRun) {
		return metav1.DeleteOptions{}, apierrors.NewBadRequest(fmt.Sprintf("Non-matching dry-run options in request and "+
			"content: %v and %v", o.DryRun, d.DryRun))
	}
	out := *d.DeepCopy()
	if len(out.DryRun) == 0 {
		out.DryRun = o.DryRun
	}
	return out, nil
}

// atRevision adds the precondition that the pod is unchanged.
func atRevision(o metav1.DeleteOptions, pod *corev1.Pod) metav1.DeleteOptions {
	out := *o.DeepCopy()
	if out.Preconditions == nil {
		out.Preconditions = &metav1.Preconditions{}
	}
	out.Preconditions.ResourceVersion = new(pod.ResourceVersion)
	return out
}

// disrupt sets the pod's DisruptionTarget condition and deletes it.
func disrupt(on kind.Parent, o metav1.DeleteOptions) error {
	r, _, _ := on.Target()
	o = *o.DeepCopy()
	if len(o.DryRun) == 0 {
		marked, err := on.Change(func(stored client.Object) (client.Object, error) {
			if err := preconditions(r.GR(), stored, o.Preconditions); err != nil {
				return nil, err
			}
			pod := stored.(*corev1.Pod)
			setCondition(pod, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"})
			return pod, nil
		})
		if err != nil {
			return err
		}
		if p := o.Preconditions; p != nil && p.ResourceVersion != nil {
			p.ResourceVersion = new(marked.GetResourceVersion())
		}
	}
	return on.Delete(o)
}

func preconditions(gr schema.GroupResource, o client.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != "" && *p.UID != o.GetUID() {
		return apierrors.NewConflict(gr, o.GetName(), fmt.Errorf(
			"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and "+
				"then recreated", *p.UID, o.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != o.GetResourceVersion() {
		return apierrors.NewConflict(gr, o.GetName(), fmt.Errorf(
			"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might "+
				"have been modified", *p.ResourceVersion, o.GetResourceVersion()))
	}
	return nil
}

// severalBudgets is upstream's error for a pod that several budgets select. It has no reason.
var severalBudgets = &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500,
	Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}

// tryLater is the error while the disruption controller has not processed the budget's latest generation.
func tryLater(budget string) error {
	err := apierrors.NewTooManyRequests(wouldViolate, 10)
	return withCause(err, fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget))
}

const wouldViolate = "Cannot evict pod as it would violate the pod's disruption budget."

func withCause(err *apierrors.StatusError, message string) error {
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: message,
	})
	return err
}

func withBudgetError(name, reason, message string) error {
	err := apierrors.NewForbidden(schema.GroupResource{Group: policy.GroupName, Resource: "poddisruptionbudget"}, name,
		errors.New(reason))
	return withCause(err,
		fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: %s", name, message))
}
