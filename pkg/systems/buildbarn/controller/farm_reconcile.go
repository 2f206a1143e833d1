package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

func partLists() []client.ObjectList {
	return []client.ObjectList{
		&buildbarn.BuildbarnSchedulerList{},
		&buildbarn.BuildbarnWorkerList{},
		&buildbarn.BuildbarnStorageList{},
		&buildbarn.BuildbarnFrontendList{},
		&buildbarn.BuildbarnBrowserList{},
	}
}

func newFarm() *engine.Reconciler {
	mine := engine.Controller(buildbarn.GroupVersion.WithKind("Buildbarn").GroupKind())
	all := []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}
	r := &engine.Reconciler{
		Name: "buildbarn", Workers: 2, When: &buildbarn.Buildbarn{},
		Watches: []engine.Watch{
			{Object: &buildbarn.Buildbarn{}},
			{Object: &corev1.ConfigMap{}, Map: mine},
			{Object: &corev1.Secret{}, Map: mine},
		},
		Writes: []engine.Write{
			{Object: &buildbarn.Buildbarn{}, Parts: []engine.Part{engine.Status}}, {Object: &corev1.ConfigMap{}, Parts: all},
			{Object: &corev1.Secret{}, Parts: all},
		},
		Indexes: []engine.Index{engine.ByController(&corev1.Secret{})},
		New:     func(env engine.Env) engine.Func { return engine.Each(env, (&farmReconciler{env}).reconcile) },
	}
	for _, o := range []client.Object{
		&buildbarn.BuildbarnScheduler{},
		&buildbarn.BuildbarnWorker{},
		&buildbarn.BuildbarnStorage{},
		&buildbarn.BuildbarnFrontend{},
		&buildbarn.BuildbarnBrowser{},
	} {
		r.Watches = append(r.Watches, engine.Watch{Object: o, Map: mine})
		r.Writes = append(r.Writes, engine.Write{Object: o, Parts: all})
	}
	return r
}

type farmReconciler struct{ engine.Env }

func (r *farmReconciler) reconcile(ctx context.Context, b *buildbarn.Buildbarn) (engine.Result, error) {
	if b.DeletionTimestamp != nil {
		return engine.Result{}, nil
	}
	o := FarmObserved{Farm: b}
	var err error
	o.ConfigMap, err = engine.Find[corev1.ConfigMap](ctx, r.Cache, b.Namespace, config.ConfigMapOf(b.Name))
	if err != nil {
		return engine.Result{}, err
	}
	for _, list := range partLists() {
		if err := r.Cache.List(ctx, list, client.InNamespace(b.Namespace)); err != nil {
			return engine.Result{}, err
		}
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			if p, ok := item.(buildbarn.Part); ok {
				o.Parts = append(o.Parts, p)
			}
			return nil
		})
	}
	if err := r.observeSecrets(ctx, &o); err != nil {
		return engine.Result{}, err
	}
	a := PlanFarm(o, r.Now())
	if err := r.apply(ctx, a); err != nil {
		return engine.Result{}, err
	}
	for _, e := range a.Events {
		r.Events.Event(b, e.Type, e.Reason, "%s", e.Message)
	}
	return engine.Result{RequeueAfter: a.Again}, engine.SetStatus(ctx, r.Client, b, &b.Status, a.Status)
}

func (r *farmReconciler) apply(ctx context.Context, a FarmActions) error {
	for _, issue := range a.Issue {
		data, err := issue.content(r.Now())
		if err != nil {
			return err
		}
		issue.Secret.Data = data
		if issue.Secret.ResourceVersion == "" {
			err = r.Client.Create(ctx, issue.Secret)
		} else {
			err = r.Client.Update(ctx, issue.Secret)
		}
		if err != nil {
			return err
		}
	}
	return (&reconciler{Env: r.Env}).apply(ctx, Actions{Create: a.Create, Update: a.Update, Delete: a.Delete})
}

// observeSecrets reads the Secrets that a farm controls, and the Secrets with the names that it wants.
func (r *farmReconciler) observeSecrets(ctx context.Context, o *FarmObserved) error {
	var owned corev1.SecretList
	if err := r.ByIndex(ctx, &owned, o.Farm.Namespace, engine.ControllerIndex, string(o.Farm.UID)); err != nil {
		return err
	}
	o.Secrets = engine.Pointers(owned.Items)
	b := o.Farm.DeepCopy()
	buildbarn.DefaultFarm(b)
	if b.Spec.TLS == nil {
		return nil
	}
	names := []string{config.AuthorityOf(b.Name)}
	for name := range leavesOf(b) {
		names = append(names, name)
	}
	for _, name := range names {
		if o.secret(name) != nil {
			continue
		}
		s, err := engine.Find[corev1.Secret](ctx, r.Cache, b.Namespace, name)
		if err != nil {
			return err
		}
		if s != nil {
			o.Secrets = append(o.Secrets, s)
		}
	}
	return nil
}
