package controller

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
)

// Observed is the input of Plan.
type Observed struct {
	Part buildbarn.Part
	// Source is the ConfigMap that the part names, nil if there is none. Files are the files that the part's programs
	// read. Problem is why the programs would not start with them. Copies are the part's own ConfigMaps.
	Source  *corev1.ConfigMap
	Files   map[string]string
	Problem string
	// Facts are the facts of each file about the farm; an element is nil if they are not known. Named are the Services
	// that the files name. Storage holds the number of pods of each one that is a BuildbarnStorage.
	Facts   []*protocol.Facts
	Named   map[string]*corev1.Service
	Storage map[string]int32
	// Schedulers and Frontends are the facts of other parts' files, for workers. Awaited means that some are still
	// being checked.
	Schedulers, Frontends map[string]*protocol.Facts
	Awaited               bool
	// Checking means that the files are being checked. Unchecked is why a check failed; it says nothing about the
	// files.
	Checking  bool
	Unchecked string
	Copies    []*corev1.ConfigMap
	// The objects with the part's name; nil if there are none.
	Deployment  *appsv1.Deployment
	StatefulSet *appsv1.StatefulSet
	Service     *corev1.Service
	Ingress     *networkingv1.Ingress
	// Rivals are the other Ingresses with the part's host, in all namespaces.
	Rivals []*networkingv1.Ingress
	// Secret is the Secret with the part's certificate; nil if the part names none or it does not exist.
	Secret *corev1.Secret
	// Pods and Claims have the part's labels.
	Pods   []*corev1.Pod
	Claims []*corev1.PersistentVolumeClaim
	// Draining is the number of workers of the same farm that still exist, for the scheduler and storage.
	Draining int
	// Queue is the scheduler's queue, for workers that follow it. It is nil if it was not read or, for the reason
	// QueueError, could not be read.
	Queue      *metrics.Queue
	QueueError string
}

// Event is an event to record about the part.
type Event struct {
	Type, Reason, Message string
}

// Actions are the writes of a plan, in the order of the fields.
type Actions struct {
	Create, Update, Delete []client.Object
	// Finalizers is the part with changed finalizers; nil if they stay. This write may end the part's deletion.
	Finalizers buildbarn.Part
	Status     buildbarn.PartStatus
	Events     []Event
	// Retire is the number of workers to choose before the Deployment is scaled down.
	Retire int32
	// Again is when to plan again even if nothing changes; 0 means never.
	Again time.Duration
}

type plan struct {
	Actions
	o    Observed
	part buildbarn.Part // with its defaults
	now  metav1.Time
	// settled is false if a write or a change is still needed before the part can be ready.
	settled bool
	// foreign describes a child's name that an object of another owner has.
	foreign string
	// doubts are warnings about the configuration. compared means that it was compared with the farm and not refused.
	doubts   []string
	compared bool
	// authorities is the hash of the authorities that the part's program trusts; empty without TLS.
	authorities string
}

// Plan returns the writes that bring the cluster closer to the part's spec. It is pure and does not change its
// argument.
func Plan(o Observed, now time.Time) Actions {
	p := &plan{o: o, part: o.Part.DeepCopyObject().(buildbarn.Part), now: metav1.NewTime(now), settled: true}
	buildbarn.DefaultPart(p.part)
	p.Status = *o.Part.Observed().DeepCopy()
	p.Status.ObservedGeneration = o.Part.GetGeneration()
	switch errs := buildbarn.ValidatePart(p.part); {
	case o.Part.GetDeletionTimestamp() != nil:
		p.finalize()
		p.count()
	case len(errs) > 0: // other API servers do not validate custom resources as ours does
		p.count()
		p.ready("InvalidSpec", errs.ToAggregate().Error())
	default:
		p.finalizer()
		p.reconcile()
	}
	p.events()
	return p.Actions
}

func (p *plan) reconcile() {
	p.Status.Selector = metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: buildbarn.Labels(p.part)})
	p.service()
	p.ingress()
	hash := p.config()
	p.authorities = p.certificate()
	replicas := p.replicas()
	if hash != "" {
		if s, ok := p.part.(*buildbarn.BuildbarnStorage); ok {
			p.statefulSet(s, hash, replicas)
		} else {
			p.deployment(hash, replicas)
		}
		p.tidy(hash)
	}
	p.abandoned(replicas)
	p.count()
	p.progress()
	p.summary(replicas)
	p.doubt()
}

// finalizer adds the finalizer. Our own API server does so when the part is created.
func (p *plan) finalizer() {
	if !slices.Contains(p.o.Part.GetFinalizers(), buildbarn.Finalizer) {
		next := p.o.Part.DeepCopyObject().(buildbarn.Part)
		next.SetFinalizers(append(next.GetFinalizers(), buildbarn.Finalizer))
		p.Finalizers = next
	}
}

// finalize drains workers, deletes claims if the policy says so, and then removes the finalizer. The garbage collector
// deletes the other children.
func (p *plan) finalize() {
	if !slices.Contains(p.o.Part.GetFinalizers(), buildbarn.Finalizer) {
		return
	}
	switch part := p.part.(type) {
	case *buildbarn.BuildbarnWorker:
		d := p.o.Deployment
		if d != nil && p.owns(d) && d.DeletionTimestamp == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas != 0) {
			next := d.DeepCopy()
			next.Spec.Replicas = new(int32)
			p.Update = append(p.Update, next)
		}
		if len(p.o.Pods) > 0 {
			p.ready("Draining", fmt.Sprintf("waiting for %s to end their actions", count.Of(len(p.o.Pods), "pod")))
			return
		}
	case *buildbarn.BuildbarnStorage:
		for _, c := range p.o.Claims {
			if p.o.Draining == 0 && part.Spec.ClaimPolicy == buildbarn.ClaimsDelete && c.DeletionTimestamp == nil {
				p.Delete = append(p.Delete, c)
			}
		}
	}
	if p.o.Draining > 0 { // without this part, workers could neither end their actions nor store the results
		p.ready("Draining", fmt.Sprintf("waiting for the deletion of %s with workers of this farm",
			count.Of(p.o.Draining, "object")))
		return
	}
	next := p.o.Part.DeepCopyObject().(buildbarn.Part)
	next.SetFinalizers(slices.DeleteFunc(next.GetFinalizers(), func(f string) bool { return f == buildbarn.Finalizer }))
	p.Finalizers = next
}

// owns reports whether the part controls an object. If not, the part is not ready while the object exists.
func (p *plan) owns(o client.Object) bool {
	if metav1.IsControlledBy(o, p.o.Part) {
		return true
	}
	p.foreign = fmt.Sprintf("there is a %s %s that this object has not made: delete it, or choose another name",
		kindName(o), o.GetName())
	return false
}

func kindName(o client.Object) string {
	switch o.(type) {
	case *appsv1.Deployment:
		return "Deployment"
	case *appsv1.StatefulSet:
		return "StatefulSet"
	case *corev1.Service:
		return "Service"
	case *networkingv1.Ingress:
		return "Ingress"
	}
	return "ConfigMap"
}

func (p *plan) change(have, next client.Object) {
	if have.GetDeletionTimestamp() != nil {
		p.settled = false // it is created again once it is gone
		return
	}
	if !equality.Semantic.DeepEqual(have, next) {
		p.Update = append(p.Update, next)
		p.settled = false
	}
}

func (p *plan) create(o client.Object) {
	p.Create = append(p.Create, o)
	p.settled = false
}

// config returns the hash of the last valid configuration, which the pods get, or "" if there never was one. It plans
// the configuration's copy.
func (p *plan) config() string {
	spec := p.part.Pods()
	var files map[string]string
	reason, message := "ConfigMissing", fmt.Sprintf("there is no ConfigMap %s: make one with the files %s",
		spec.ConfigMapName, p.mainFiles())
	switch {
	case p.o.Source == nil:
	case p.o.Checking:
		if last := p.Status.ConfigHash; p.copyNamed(p.copyName(last)) != nil {
			return last
		}
		return ""
	case p.o.Unchecked != "":
		reason, message = "NotChecked", p.o.Unchecked
		p.Again = refusedAgain
	case p.o.Problem != "":
		reason, message = "ConfigInvalid", fmt.Sprintf("ConfigMap %s: %s", spec.ConfigMapName, p.o.Problem)
	default:
		if problem := p.compare(); problem != "" {
			reason, message = "ConfigInvalid", fmt.Sprintf("ConfigMap %s: %s", spec.ConfigMapName, problem)
		} else {
			files = p.o.Files
		}
	}
	if files != nil {
		hash := config.Hash(files)
		want := p.copyOf(files, hash)
		if have := p.copyNamed(want.Name); have == nil {
			p.create(want)
		}
		if p.o.Source.Annotations[buildbarn.AnnotationFields] == buildbarn.FieldsUnchecked {
			p.condition(buildbarn.ConditionConfigValid, metav1.ConditionTrue, "FieldsUnchecked",
				"the files were evaluated, but their fields were not checked, because of the annotation of the ConfigMap")
		} else {
			p.condition(buildbarn.ConditionConfigValid, metav1.ConditionTrue, "Valid", "")
		}
		p.Status.ConfigHash = hash
		return hash
	}
	last := p.Status.ConfigHash
	if last == "" || p.copyNamed(p.copyName(last)) == nil {
		last = ""
		message += "; there are no pods until then"
	} else {
		message += "; the pods keep the last valid one"
	}
	p.Status.ConfigHash = last
	p.condition(buildbarn.ConditionConfigValid, metav1.ConditionFalse, reason, message)
	return last
}

func (p *plan) mains() []config.Main { return config.Mains(p.part.Component(), instance(p.part)) }

func (p *plan) mainFiles() string {
	text := ""
	for i, m := range p.mains() {
		if i > 0 {
			text += " and "
		}
		text += m.File
	}
	return text
}

func instance(part buildbarn.Part) string {
	if w, ok := part.(*buildbarn.BuildbarnWorker); ok {
		return w.Spec.Instance
	}
	return ""
}

func (p *plan) copyName(hash string) string { return p.part.GetName() + "-config-" + hash }

func (p *plan) copyNamed(name string) *corev1.ConfigMap {
	for _, c := range p.o.Copies {
		if c.Name == name && c.DeletionTimestamp == nil {
			return c
		}
	}
	return nil
}

// tidy deletes the copies that neither pods nor the pod template use.
func (p *plan) tidy(hash string) {
	used := map[string]bool{p.copyName(hash): true}
	note := func(volumes []corev1.Volume) {
		for _, v := range volumes {
			if v.ConfigMap != nil {
				used[v.ConfigMap.Name] = true
			}
		}
	}
	for _, pod := range p.o.Pods {
		note(pod.Spec.Volumes)
	}
	if d := p.o.Deployment; d != nil {
		note(d.Spec.Template.Spec.Volumes)
	}
	if s := p.o.StatefulSet; s != nil {
		note(s.Spec.Template.Spec.Volumes)
	}
	for _, c := range p.o.Copies {
		if !used[c.Name] && c.DeletionTimestamp == nil {
			p.Delete = append(p.Delete, c)
		}
	}
}
