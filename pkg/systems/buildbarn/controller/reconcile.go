// Package controller makes the children of Buildbarn's parts, and the parts of whole farms. Its invariants: pods only
// get configurations that passed the check, each as an immutable copy; a child that is up to date is not written; and
// objects of other owners are left alone.
package controller

import (
	"cmp"
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// refusedAgain is the delay of a retry after the API server refused a child. A change causes an immediate retry.
const refusedAgain = time.Minute

type reconciler struct {
	engine.Env
	part
	hosts  bool
	checks *checks
	lost   *losses
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	p := r.object()
	if err := r.Cache.Get(ctx, req.NamespacedName, p); err != nil {
		if apierrors.IsNotFound(err) {
			r.checks.forget(req)
			r.lost.forget(req)
		}
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	o, err := r.observe(ctx, p)
	if err != nil {
		return engine.Result{}, err
	}
	a := Plan(o, r.Now())
	if w, ok := p.(*buildbarn.BuildbarnWorker); ok {
		if gone := r.lost.notice(req, o.Pods); len(gone) > 0 {
			r.Go(func(ctx context.Context) { r.abandon(ctx, w, gone) })
		}
		if a.Retire > 0 {
			err = r.retire(ctx, w, o.Pods, a.Retire)
		}
	}
	if err == nil {
		err = r.apply(ctx, a)
	}
	switch {
	case engine.Terminating(err):
		return engine.Result{}, nil
	case refused(err):
		a.Status.State, a.Again = buildbarn.NotReady, refusedAgain
		set := meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{
			Type: buildbarn.ConditionReady, Status: metav1.ConditionFalse, Reason: "Refused",
			Message: err.Error(), ObservedGeneration: p.GetGeneration(), LastTransitionTime: metav1.NewTime(r.Now()),
		})
		if set {
			a.Events = append(a.Events, Event{corev1.EventTypeWarning, "Refused", err.Error()})
		}
	case err != nil:
		return engine.Result{}, err
	case o.Checking: // the status is written after the verdict
		return engine.Result{RequeueAfter: a.Again}, nil
	}
	for _, e := range a.Events {
		r.Events.Event(p, e.Type, e.Reason, "%s", e.Message)
	}
	if !equality.Semantic.DeepEqual(a.Status, *p.Observed()) {
		next := p.DeepCopyObject().(buildbarn.Part)
		*next.Observed() = a.Status
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
		if f := a.Finalizers; f != nil {
			f.SetResourceVersion(next.GetResourceVersion())
		}
	}
	if a.Finalizers != nil {
		if err := r.Client.Update(ctx, a.Finalizers); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
	}
	return engine.Result{RequeueAfter: a.Again}, nil
}

// refused reports whether the API server rejects a child as it is, so that an unchanged retry would fail too.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
}

func (r *reconciler) apply(ctx context.Context, a Actions) error {
	for _, o := range a.Create {
		if err := r.Client.Create(ctx, o); err != nil {
			return err
		}
	}
	for _, o := range a.Update {
		if err := r.Client.Update(ctx, o); err != nil {
			return err
		}
	}
	for _, o := range a.Delete {
		if err := engine.Remove(ctx, r.Client, o,
			client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) observe(ctx context.Context, p buildbarn.Part) (o Observed, err error) {
	o.Part = p
	namespace, name := p.GetNamespace(), p.GetName()
	source := cmp.Or(p.Pods().ConfigMapName, buildbarn.DefaultConfigMap)
	if o.Source, err = engine.Find[corev1.ConfigMap](ctx, r.Cache, namespace, source); err != nil {
		return o, err
	}
	if o.Source != nil && p.GetDeletionTimestamp() == nil {
		r.check(p, &o)
	}
	var copies corev1.ConfigMapList
	if err := r.ByIndex(ctx, &copies, namespace, engine.ControllerIndex, string(p.GetUID())); err != nil {
		return o, err
	}
	o.Copies = engine.Pointers(copies.Items)
	if t := p.Pods().TLS; t != nil {
		if o.Secret, err = engine.Find[corev1.Secret](ctx, r.Cache, namespace, t.SecretName); err != nil {
			return o, err
		}
	}
	if err := r.observeChildren(ctx, p, &o); err != nil {
		return o, err
	}
	if err := errors.Join(r.observeNamed(ctx, p, &o), r.observeFarm(ctx, p, &o)); err != nil {
		return o, err
	}
	if farm := metav1.GetControllerOfNoCopy(p); farm != nil && r.outlives() && p.GetDeletionTimestamp() != nil {
		var workers buildbarn.BuildbarnWorkerList
		if err := r.Cache.List(ctx, &workers, client.InNamespace(namespace)); err != nil {
			return o, err
		}
		for i := range workers.Items {
			if ref := metav1.GetControllerOfNoCopy(&workers.Items[i]); ref != nil && ref.UID == farm.UID {
				o.Draining++
			}
		}
	}
	if o.Pods, err = r.pods(ctx, p); err != nil {
		return o, err
	}
	if r.sets {
		var claims corev1.PersistentVolumeClaimList
		if err := r.ByIndex(ctx, &claims, namespace, indexLabels, p.Component()+"/"+name); err != nil {
			return o, err
		}
		o.Claims = engine.Pointers(claims.Items)
	}
	if w, ok := p.(*buildbarn.BuildbarnWorker); ok && w.Spec.Scale != nil && w.DeletionTimestamp == nil {
		o.Queue, err = r.queue(ctx, w)
		if err != nil {
			o.QueueError = err.Error()
		}
	}
	return o, nil
}

func defaulted(p buildbarn.Part) buildbarn.Part {
	p = p.DeepCopyObject().(buildbarn.Part)
	buildbarn.DefaultPart(p)
	return p
}

func (r *reconciler) observeChildren(ctx context.Context, p buildbarn.Part, o *Observed) (err error) {
	namespace, name := p.GetNamespace(), p.GetName()
	if r.sets {
		o.StatefulSet, err = engine.Find[appsv1.StatefulSet](ctx, r.Cache, namespace, name)
	} else {
		o.Deployment, err = engine.Find[appsv1.Deployment](ctx, r.Cache, namespace, name)
	}
	if err != nil {
		return err
	}
	if r.service {
		if o.Service, err = engine.Find[corev1.Service](ctx, r.Cache, namespace, name); err != nil {
			return err
		}
	}
	if !r.hosts {
		return nil
	}
	if o.Ingress, err = engine.Find[networkingv1.Ingress](ctx, r.Cache, namespace, name); err != nil {
		return err
	}
	host := buildbarn.HostOf(p)
	if host == "" {
		return nil
	}
	var rivals networkingv1.IngressList
	if err := r.ByIndex(ctx, &rivals, "", indexHost, host); err != nil {
		return err
	}
	for _, rival := range engine.Pointers(rivals.Items) {
		if rival.Namespace != namespace || rival.Name != name {
			o.Rivals = append(o.Rivals, rival)
		}
	}
	return nil
}
