package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

// FarmObserved is the input of PlanFarm: the farm, its ConfigMap (nil if there is none), all parts in the namespace,
// and the Secrets that the farm controls or wants.
type FarmObserved struct {
	Farm      *buildbarn.Buildbarn
	ConfigMap *corev1.ConfigMap
	Parts     []buildbarn.Part
	Secrets   []*corev1.Secret
}

func (o FarmObserved) secret(name string) *corev1.Secret {
	for _, s := range o.Secrets {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// FarmActions are the writes of a plan, in the order of the fields.
type FarmActions struct {
	Issue                  []Issue
	Create, Update, Delete []client.Object
	Status                 buildbarn.BuildbarnStatus
	Events                 []Event
	// Again is when to renew certificates; 0 means never.
	Again time.Duration
}

func (a *FarmActions) forget(kind string) { meta.RemoveStatusCondition(&a.Status.Conditions, kind) }

// PlanFarm returns the writes that bring the cluster closer to the farm's spec. It is pure and does not change its
// argument.
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
		meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{
			Type:               kind,
			Status:             status,
			Reason:             reason,
			Message:            message,
			ObservedGeneration: b.Generation,
			LastTransitionTime: metav1.NewTime(now),
		})
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
	trust, ok := a.certificates(o, b, condition, now)
	if !ok {
		return a
	}
	files, err := config.Render(b, trust)
	if err != nil { // a bug, not the user's mistake
		condition(buildbarn.ConditionConfigValid, false, "ConfigInvalid", err.Error())
		condition(buildbarn.ConditionReady, false, "ConfigInvalid", err.Error())
		return a
	}
	condition(buildbarn.ConditionConfigValid, true, "Valid", "")
	taken := a.configMap(o, b, files)
	if t := a.parts(o, b); t != "" {
		taken = t
	}
	a.sum(o, b, hashes(files, b), taken, condition)
	return a
}

// hashes returns the hash of each part's rendered files by the part's name.
func hashes(files map[string]string, b *buildbarn.Buildbarn) map[string]string {
	by := map[string]string{}
	for _, p := range parts(b) {
		by[p.GetName()] = config.Hash(config.Used(files, config.Mains(p.Component(), instance(p))))
	}
	return by
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
		return fmt.Sprintf("there is a ConfigMap %s that this farm has not made: delete it, or choose another name",
			have.Name)
	case have.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(have.Data, want.Data):
		next := have.DeepCopy()
		next.Data, next.BinaryData = files, nil
		a.Update = append(a.Update, next)
	}
	return ""
}

// parts plans the parts. taken describes a part of the same name with another owner.
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
			taken = fmt.Sprintf("there is a %s %s that this farm has not made: delete it, or choose another name", kindOf(have),
				have.GetName())
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

// sum derives the farm's state from its parts. A part whose status does not have the hash of its present configuration
// is not ready.
func (a *FarmActions) sum(o FarmObserved, b *buildbarn.Buildbarn, hashes map[string]string, taken string,
	condition func(string, bool, string, string)) {
	s := &a.Status
	s.Replicas, s.ReadyReplicas, s.Parts = 0, 0, nil
	var waiting []string
	for _, want := range parts(b) {
		f := buildbarn.FarmPart{Name: want.GetName(), Kind: kindOf(want), State: buildbarn.NotFound}
		for _, p := range o.Parts {
			if kindOf(p) == f.Kind && p.GetName() == f.Name && metav1.IsControlledBy(p, b) {
				was := p.Observed()
				f.State, f.Replicas, f.ReadyReplicas = was.State, was.Replicas, was.ReadyReplicas
				if was.ObservedGeneration < p.GetGeneration() || f.State == "" || was.ConfigHash != hashes[f.Name] {
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
		condition(buildbarn.ConditionReady, true, "PartsReady",
			fmt.Sprintf("%d of %s ready", s.ReadyReplicas, count.Of(s.Replicas, "pod")))
	}
}

func parts(b *buildbarn.Buildbarn) []buildbarn.Part {
	s := &b.Spec
	pods := func(image string, resources corev1.ResourceRequirements, replicas *int32) buildbarn.PodSpec {
		return buildbarn.PodSpec{
			Image: image, ImagePullPolicy: s.ImagePullPolicy, ImagePullSecrets: s.ImagePullSecrets, Replicas: replicas,
			ConfigMapName: config.ConfigMapOf(b.Name), Resources: resources,
		}
	}
	stores := config.Pods(s.Storage)
	list := []buildbarn.Part{
		&buildbarn.BuildbarnStorage{
			ObjectMeta: farmMeta(b, config.StorageOf(b.Name)),
			Spec: buildbarn.BuildbarnStorageSpec{PodSpec: pods(s.Images.Storage, s.Storage.Resources, &stores),
				VolumeInitImage: s.Images.VolumeInit, CASSize: s.Storage.CASSize, ACSize: s.Storage.ACSize,
				StorageClassName: s.Storage.StorageClassName,
				ClaimPolicy:      s.Storage.ClaimPolicy, Mirrored: s.Storage.Mirrored},
		},
		&buildbarn.BuildbarnScheduler{
			ObjectMeta: farmMeta(b, config.SchedulerOf(b.Name)),
			Spec: buildbarn.BuildbarnSchedulerSpec{
				PodSpec: pods(s.Images.Scheduler, s.Scheduler.Resources, nil), IngressHost: s.Scheduler.IngressHost,
			},
		},
		&buildbarn.BuildbarnFrontend{
			ObjectMeta: farmMeta(b, config.FrontendOf(b.Name)),
			Spec: buildbarn.BuildbarnFrontendSpec{
				PodSpec: pods(s.Images.Storage, s.Frontend.Resources, s.Frontend.Replicas), ServiceType: s.Frontend.ServiceType,
			},
		},
	}
	if s.Images.Browser != "" {
		list = append(list, &buildbarn.BuildbarnBrowser{
			ObjectMeta: farmMeta(b, config.BrowserOf(b.Name)),
			Spec: buildbarn.BuildbarnBrowserSpec{
				PodSpec: pods(s.Images.Browser, s.Browser.Resources, nil), IngressHost: s.Browser.IngressHost,
			},
		})
	}
	for i := range s.Workers {
		list = append(list, workers(b, &s.Workers[i], pods))
	}
	for _, p := range list {
		if s.TLS != nil {
			p.Pods().TLS = &buildbarn.PartTLS{SecretName: config.TLSOf(p.GetName())}
		}
		buildbarn.DefaultPart(p)
	}
	return list
}

func workers(b *buildbarn.Buildbarn, w *buildbarn.FarmWorkers,
	pods func(string, corev1.ResourceRequirements, *int32) buildbarn.PodSpec) buildbarn.Part {
	p := pods(b.Spec.Images.Worker, w.Resources, w.Replicas)
	p.NodeSelector, p.Tolerations = w.NodeSelector, w.Tolerations
	out := &buildbarn.BuildbarnWorker{
		ObjectMeta: farmMeta(b, config.WorkersOf(b.Name, w.Name)),
		Spec: buildbarn.BuildbarnWorkerSpec{PodSpec: p, Instance: w.Name,
			RunnerImage: w.RunnerImage, RunnerInstallerImage: b.Spec.Images.RunnerInstaller,
			VolumeInitImage: b.Spec.Images.VolumeInit,
			RunnerResources: w.RunnerResources, DrainSeconds: w.DrainSeconds},
	}
	out.Spec.RunnerImage = cmp.Or(out.Spec.RunnerImage, b.Spec.Images.Runner)
	if r := w.Scale; r != nil {
		out.Spec.Scale = &buildbarn.WorkerScale{
			Min: r.Min, Max: r.Max, IdleSeconds: r.IdleSeconds, IntervalSeconds: r.IntervalSeconds,
			Scheduler: config.SchedulerOf(b.Name), InstanceNamePrefix: w.InstanceNamePrefix, Platform: w.Platform,
			Concurrency: w.Concurrency,
		}
	}
	return out
}
