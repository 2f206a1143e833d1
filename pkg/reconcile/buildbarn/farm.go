package buildbarn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/buildbarn/config"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

// FarmObserved is what PlanFarm goes by: the ConfigMap, nil if there is none, and all parts in the namespace.
type FarmObserved struct {
	Farm      *buildbarn.Buildbarn
	ConfigMap *corev1.ConfigMap
	Parts     []buildbarn.Part
}

// FarmActions are what to write, in the order of the fields.
type FarmActions struct {
	Create, Update, Delete []client.Object
	Status                 buildbarn.BuildbarnStatus
	Events                 []Event
}

// PlanFarm returns what brings the cluster closer to the farm's spec. It is pure and does not change its argument.
func PlanFarm(o FarmObserved, now time.Time) FarmActions {
	b := o.Farm.DeepCopy()
	buildbarn.DefaultFarm(b)
	a := FarmActions{Status: *o.Farm.Status.DeepCopy()}
	a.Status.ObservedGeneration = b.Generation
	condition := func(kind string, ok bool, reason, message string) {
		status := metav1.ConditionFalse
		if ok {
			status = metav1.ConditionTrue
		}
		was := meta.FindStatusCondition(o.Farm.Status.Conditions, kind)
		meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: b.Generation, LastTransitionTime: metav1.NewTime(now)})
		if was != nil && was.Status == status && was.Reason == reason || reason == "PartsNotReady" {
			return
		}
		if !ok {
			a.Events = append(a.Events, Event{corev1.EventTypeWarning, reason, message})
		} else if kind == buildbarn.ConditionReady {
			a.Events = append(a.Events, Event{corev1.EventTypeNormal, reason, message})
		}
	}
	if errs := buildbarn.ValidateFarm(b); len(errs) > 0 {
		a.Status.State = buildbarn.NotReady
		condition(buildbarn.ConditionReady, false, "InvalidSpec", errs.ToAggregate().Error())
		return a
	}
	files, err := config.Render(b)
	if err == nil {
		err = checkAll(files, b)
	}
	if err != nil { // not a farm's fault: Render makes what Check accepts
		condition(buildbarn.ConditionConfigValid, false, "ConfigInvalid", err.Error())
		condition(buildbarn.ConditionReady, false, "ConfigInvalid", err.Error())
		return a
	}
	condition(buildbarn.ConditionConfigValid, true, "Valid", "")
	taken := a.configMap(o, b, files)
	if t := a.parts(o, b); t != "" {
		taken = t
	}
	a.sum(o, b, taken, condition)
	return a
}

// checkAll checks rendered files as those of users are.
func checkAll(files map[string]string, b *buildbarn.Buildbarn) error {
	for _, p := range parts(b) {
		if _, err := config.Check(files, config.Mains(p.Component(), instance(p))); err != nil {
			return err
		}
	}
	return nil
}

func farmMeta(b *buildbarn.Buildbarn, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: b.Namespace, Labels: map[string]string{"buildbarn.io/farm": b.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, buildbarn.GroupVersion.WithKind("Buildbarn"))}}
}

func (a *FarmActions) configMap(o FarmObserved, b *buildbarn.Buildbarn, files map[string]string) (taken string) {
	want := &corev1.ConfigMap{ObjectMeta: farmMeta(b, config.ConfigMapOf(b.Name)), Data: files}
	switch have := o.ConfigMap; {
	case have == nil:
		a.Create = append(a.Create, want)
	case !metav1.IsControlledBy(have, b):
		return fmt.Sprintf("there is a ConfigMap %s that this farm has not made: delete it, or choose another name", have.Name)
	case have.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(have.Data, want.Data):
		next := have.DeepCopy()
		next.Data, next.BinaryData = files, nil
		a.Update = append(a.Update, next)
	}
	return ""
}

// parts plans the parts. It returns which name is taken by a part of somebody else.
func (a *FarmActions) parts(o FarmObserved, b *buildbarn.Buildbarn) (taken string) {
	wanted := map[string]bool{}
	for _, want := range parts(b) {
		key := kindOf(want) + "/" + want.GetName()
		wanted[key] = true
		i := slices.IndexFunc(o.Parts, func(p buildbarn.Part) bool { return kindOf(p)+"/"+p.GetName() == key })
		if i < 0 {
			a.Create = append(a.Create, want)
			continue
		}
		have := o.Parts[i]
		if !metav1.IsControlledBy(have, b) {
			taken = fmt.Sprintf("there is a %s %s that this farm has not made: delete it, or choose another name", kindOf(have), have.GetName())
			continue
		}
		next := have.DeepCopyObject().(buildbarn.Part)
		setSpec(next, want)
		if have.GetDeletionTimestamp() == nil && !equality.Semantic.DeepEqual(have, next) {
			a.Update = append(a.Update, next)
		}
	}
	for _, p := range o.Parts {
		if metav1.IsControlledBy(p, b) && !wanted[kindOf(p)+"/"+p.GetName()] && p.GetDeletionTimestamp() == nil {
			a.Delete = append(a.Delete, p)
		}
	}
	return taken
}

func setSpec(to, from buildbarn.Part) {
	switch to := to.(type) {
	case *buildbarn.BuildbarnScheduler:
		to.Spec = from.(*buildbarn.BuildbarnScheduler).Spec
	case *buildbarn.BuildbarnWorker:
		to.Spec = from.(*buildbarn.BuildbarnWorker).Spec
	case *buildbarn.BuildbarnStorage:
		to.Spec = from.(*buildbarn.BuildbarnStorage).Spec
	case *buildbarn.BuildbarnFrontend:
		to.Spec = from.(*buildbarn.BuildbarnFrontend).Spec
	case *buildbarn.BuildbarnBrowser:
		to.Spec = from.(*buildbarn.BuildbarnBrowser).Spec
	}
}

// sum sets the farm's state to that of its parts.
func (a *FarmActions) sum(o FarmObserved, b *buildbarn.Buildbarn, taken string, condition func(string, bool, string, string)) {
	s := &a.Status
	s.Replicas, s.ReadyReplicas, s.Parts = 0, 0, nil
	var waiting []string
	for _, want := range parts(b) {
		f := buildbarn.FarmPart{Name: want.GetName(), Kind: kindOf(want), State: buildbarn.NotFound}
		for _, p := range o.Parts {
			if kindOf(p) == f.Kind && p.GetName() == f.Name && metav1.IsControlledBy(p, b) {
				was := p.Observed()
				f.State, f.Replicas, f.ReadyReplicas = was.State, was.Replicas, was.ReadyReplicas
				if was.ObservedGeneration < p.GetGeneration() || f.State == "" {
					f.State = buildbarn.NotReady
				}
			}
		}
		if f.State != buildbarn.Ready {
			waiting = append(waiting, f.Name)
		}
		s.Replicas += f.Replicas
		s.ReadyReplicas += f.ReadyReplicas
		s.Parts = append(s.Parts, f)
	}
	s.State = buildbarn.NotReady
	switch {
	case taken != "":
		condition(buildbarn.ConditionReady, false, "NameTaken", taken)
	case len(waiting) > 0 || len(a.Create)+len(a.Update) > 0:
		condition(buildbarn.ConditionReady, false, "PartsNotReady", "not ready: "+strings.Join(waiting, ", "))
	default:
		s.State = buildbarn.Ready
		condition(buildbarn.ConditionReady, true, "PartsReady", fmt.Sprintf("%d of %d pods are ready", s.ReadyReplicas, s.Replicas))
	}
}

// parts returns a farm's parts, with their defaults.
func parts(b *buildbarn.Buildbarn) []buildbarn.Part {
	s := &b.Spec
	pods := func(image string, resources corev1.ResourceRequirements, replicas *int32) buildbarn.PodSpec {
		return buildbarn.PodSpec{Image: image, ImagePullPolicy: s.ImagePullPolicy, ImagePullSecrets: s.ImagePullSecrets, Replicas: replicas,
			ConfigMapName: config.ConfigMapOf(b.Name), Resources: resources}
	}
	stores := config.Pods(s.Storage)
	list := []buildbarn.Part{
		&buildbarn.BuildbarnStorage{ObjectMeta: farmMeta(b, config.StorageOf(b.Name)), Spec: buildbarn.BuildbarnStorageSpec{PodSpec: pods(s.Images.Storage, s.Storage.Resources, &stores),
			VolumeInitImage: s.Images.VolumeInit, CASSize: s.Storage.CASSize, ACSize: s.Storage.ACSize, StorageClassName: s.Storage.StorageClassName,
			ClaimPolicy: s.Storage.ClaimPolicy, Mirrored: s.Storage.Mirrored}},
		&buildbarn.BuildbarnScheduler{ObjectMeta: farmMeta(b, config.SchedulerOf(b.Name)), Spec: buildbarn.BuildbarnSchedulerSpec{PodSpec: pods(s.Images.Scheduler, s.Scheduler.Resources, nil), IngressHost: s.Scheduler.IngressHost}},
		&buildbarn.BuildbarnFrontend{ObjectMeta: farmMeta(b, config.FrontendOf(b.Name)), Spec: buildbarn.BuildbarnFrontendSpec{PodSpec: pods(s.Images.Storage, s.Frontend.Resources, s.Frontend.Replicas), ServiceType: s.Frontend.ServiceType}},
	}
	if s.Images.Browser != "" {
		list = append(list, &buildbarn.BuildbarnBrowser{ObjectMeta: farmMeta(b, config.BrowserOf(b.Name)), Spec: buildbarn.BuildbarnBrowserSpec{PodSpec: pods(s.Images.Browser, s.Browser.Resources, nil), IngressHost: s.Browser.IngressHost}})
	}
	for i := range s.Workers {
		list = append(list, workers(b, &s.Workers[i], pods))
	}
	for _, p := range list {
		buildbarn.DefaultPart(p)
	}
	return list
}

func workers(b *buildbarn.Buildbarn, w *buildbarn.FarmWorkers, pods func(string, corev1.ResourceRequirements, *int32) buildbarn.PodSpec) buildbarn.Part {
	p := pods(b.Spec.Images.Worker, w.Resources, w.Replicas)
	p.NodeSelector, p.Tolerations = w.NodeSelector, w.Tolerations
	out := &buildbarn.BuildbarnWorker{ObjectMeta: farmMeta(b, config.WorkersOf(b.Name, w.Name)), Spec: buildbarn.BuildbarnWorkerSpec{PodSpec: p, Instance: w.Name,
		RunnerImage: w.RunnerImage, RunnerInstallerImage: b.Spec.Images.RunnerInstaller, VolumeInitImage: b.Spec.Images.VolumeInit,
		RunnerResources: w.RunnerResources, DrainSeconds: w.DrainSeconds}}
	if out.Spec.RunnerImage == "" {
		out.Spec.RunnerImage = b.Spec.Images.Runner
	}
	if r := w.Scale; r != nil {
		out.Spec.Scale = &buildbarn.WorkerScale{Min: r.Min, Max: r.Max, IdleSeconds: r.IdleSeconds, IntervalSeconds: r.IntervalSeconds,
			Scheduler: config.SchedulerOf(b.Name), InstanceNamePrefix: w.InstanceNamePrefix, Platform: w.Platform, Concurrency: w.Concurrency}
	}
	return out
}

// partLists are the lists of all kinds of parts.
func partLists() []client.ObjectList {
	return []client.ObjectList{&buildbarn.BuildbarnSchedulerList{}, &buildbarn.BuildbarnWorkerList{}, &buildbarn.BuildbarnStorageList{}, &buildbarn.BuildbarnFrontendList{}, &buildbarn.BuildbarnBrowserList{}}
}

func newFarm() *engine.Reconciler {
	mine := engine.Controller(buildbarn.GroupVersion.WithKind("Buildbarn").GroupKind())
	all := []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}
	r := &engine.Reconciler{
		Name: "buildbarn", Workers: 2, When: &buildbarn.Buildbarn{},
		Watches: []engine.Watch{{Object: &buildbarn.Buildbarn{}}, {Object: &corev1.ConfigMap{}, Map: mine}},
		Writes:  []engine.Write{{Object: &buildbarn.Buildbarn{}, Parts: []engine.Part{engine.Status}}, {Object: &corev1.ConfigMap{}, Parts: all}},
		New:     func(env engine.Env) engine.Func { return (&farmReconciler{env}).reconcile },
	}
	for _, o := range []client.Object{&buildbarn.BuildbarnScheduler{}, &buildbarn.BuildbarnWorker{}, &buildbarn.BuildbarnStorage{}, &buildbarn.BuildbarnFrontend{}, &buildbarn.BuildbarnBrowser{}} {
		r.Watches = append(r.Watches, engine.Watch{Object: o, Map: mine})
		r.Writes = append(r.Writes, engine.Write{Object: o, Parts: all})
	}
	return r
}

type farmReconciler struct{ engine.Env }

func (r *farmReconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var b buildbarn.Buildbarn
	if err := r.Cache.Get(ctx, req.NamespacedName, &b); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if b.DeletionTimestamp != nil {
		return engine.Result{}, nil
	}
	o := FarmObserved{Farm: &b}
	var c corev1.ConfigMap
	switch err := r.Cache.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: config.ConfigMapOf(b.Name)}, &c); {
	case err == nil:
		o.ConfigMap = &c
	case !apierrors.IsNotFound(err):
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
	a := PlanFarm(o, r.Now())
	if err := (&reconciler{Env: r.Env}).apply(ctx, Actions{Create: a.Create, Update: a.Update, Delete: a.Delete}); err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return engine.Result{}, nil
		}
		return engine.Result{}, err
	}
	for _, e := range a.Events {
		r.Events.Event(&b, e.Type, e.Reason, "%s", e.Message)
	}
	if equality.Semantic.DeepEqual(a.Status, b.Status) {
		return engine.Result{}, nil
	}
	next := b.DeepCopy()
	next.Status = a.Status
	return engine.Result{}, client.IgnoreNotFound(r.Client.Status().Update(ctx, next))
}
