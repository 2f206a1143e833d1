package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Image is the image of the built-in functions.
const Image = "coracle/worker:latest"

// Observed is the input of Plan.
type Observed struct {
	Worker *workers.Worker
	// Sets and Pods are controlled by the worker, Pods through a set.
	Sets    []*appsv1.ReplicaSet
	Pods    []*corev1.Pod
	Service *corev1.Service
	// NoDeadLetter means that the dead-letter worker does not exist, NoReplies that the worker for replies does not.
	NoDeadLetter, NoReplies bool
}

// Actions are the writes of a plan, in the order of the fields.
type Actions struct {
	CreateService, UpdateService *corev1.Service
	CreateSet                    *appsv1.ReplicaSet
	ScaleSets                    []*appsv1.ReplicaSet // copies with a changed number of replicas
	DeleteSets                   []*appsv1.ReplicaSet
	Status                       workers.WorkerStatus
	Again                        time.Duration
}

// Plan returns the writes that bring the cluster closer to the worker's spec. It is pure and does not change its
// argument.
func Plan(o Observed, now time.Time) Actions {
	w := o.Worker
	a := Actions{Status: *w.Status.DeepCopy()}
	s := &a.Status
	s.ObservedGeneration = w.Generation
	tally(o.Pods, s)
	a.Again = scale(w, now, s)
	conflict := a.service(o)

	want := Set(w, s.DesiredReplicas)
	var current *appsv1.ReplicaSet
	var old []*appsv1.ReplicaSet
	for _, set := range o.Sets {
		if set.Name == want.Name {
			current = set
		} else if set.DeletionTimestamp == nil {
			old = append(old, set)
		}
	}
	switch {
	case current == nil:
		a.CreateSet = want
	case current.DeletionTimestamp == nil && (current.Spec.Replicas == nil || *current.Spec.Replicas != s.DesiredReplicas):
		next := current.DeepCopy()
		next.Spec.Replicas = &s.DesiredReplicas
		a.ScaleSets = append(a.ScaleSets, next)
	}
	// The pods of earlier specifications are deleted once enough pods of the present one are ready.
	if current != nil && (current.Status.ReadyReplicas >= s.DesiredReplicas || s.DesiredReplicas == 0) {
		a.DeleteSets = old
	}
	ready(w, s, conflict, waiting(o.Pods))
	d := &w.Spec.Delivery
	other(w, s, workers.ConditionDeadLetter, d.DeadLetter, o.NoDeadLetter, "the messages that fail",
		"messages that fail stay in the queue as dead until it does")
	other(w, s, workers.ConditionReplies, d.Replies, o.NoReplies, "the replies to messages whose senders do not wait",
		"messages whose senders do not wait fail until it does")
	queue(w, s)
	return a
}

func tally(pods []*corev1.Pod, s *workers.WorkerStatus) {
	s.Replicas, s.ReadyReplicas = 0, 0
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil {
			continue
		}
		s.Replicas++
		if podstate.Ready(p) {
			s.ReadyReplicas++
		}
	}
}

// scale sets the number of pods to request, and returns when to compute it again; 0 means never. The server that keeps
// the queue has set Depth, InFlight and LastMessageTime.
func scale(w *workers.Worker, now time.Time, s *workers.WorkerStatus) time.Duration {
	r := w.Spec.Scale
	if r == nil {
		s.DesiredReplicas, s.LowSince = 1, nil
		if w.Spec.Replicas != nil {
			s.DesiredReplicas = *w.Spec.Replicas
		}
		return 0
	}
	idle := time.Duration(r.IdleSeconds) * time.Second
	want := (s.Depth + s.InFlight + r.TargetDepth - 1) / r.TargetDepth
	var again time.Duration
	if last := s.LastMessageTime; last != nil && want == 0 {
		// The time is published that rarely, in whole seconds.
		if left := last.Add(idle + workers.LastMessageStep(idle) + time.Second).Sub(now); left > 0 {
			want, again = 1, left
		}
	}
	want = min(max(want, r.Min), r.Max)
	have := min(max(s.DesiredReplicas, r.Min), r.Max)
	if want >= have {
		s.DesiredReplicas, s.LowSince = want, nil
		return again
	}
	if s.LowSince == nil {
		since := metav1.NewTime(now)
		s.LowSince = &since
	}
	// The API's times are in whole seconds.
	if left := s.LowSince.Add(idle).Sub(now); left > 0 && want > 0 {
		s.DesiredReplicas = have
		if again == 0 {
			again = left
		}
		return min(again, left)
	}
	s.DesiredReplicas, s.LowSince = want, nil
	return again
}

// service plans the service. It returns the reason if the name belongs to another service.
func (a *Actions) service(o Observed) (conflict string) {
	want := Service(o.Worker)
	have := o.Service
	if have == nil {
		a.CreateService = want
		return ""
	}
	if !metav1.IsControlledBy(have, o.Worker) {
		return fmt.Sprintf("service %s exists already and belongs to another owner: delete it, or rename the worker",
			have.Name)
	}
	if !maps.Equal(have.Spec.Selector, want.Spec.Selector) || !equality.Semantic.DeepEqual(ports(have), ports(want)) {
		next := have.DeepCopy()
		next.Spec.Selector, next.Spec.Ports = want.Spec.Selector, want.Spec.Ports
		a.UpdateService = next
	}
	return ""
}

func ports(s *corev1.Service) (list []int32) {
	for _, p := range s.Spec.Ports {
		list = append(list, p.Port, p.TargetPort.IntVal)
	}
	return list
}

// maxWaiting limits the text of why a pod waits, in bytes.
const maxWaiting = 512

// waiting returns why the first pod that is not ready waits, or "".
func waiting(pods []*corev1.Pod) string {
	for _, p := range pods {
		if podstate.Ready(p) || !podstate.Active(p) {
			continue
		}
		if reason := waits(p); reason != "" {
			return fmt.Sprintf(": pod/%s: %s", p.Name, bounded.Text(reason, maxWaiting))
		}
	}
	return ""
}

// waits returns why a pod waits, or "" if it has no other reason than that it starts.
func waits(p *corev1.Pod) string {
	if c := podstate.Condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Message
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			w := c.State.Waiting
			if w != nil && w.Reason != "" && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
				return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
			}
		}
	}
	return ""
}

func ready(w *workers.Worker, s *workers.WorkerStatus, conflict, waiting string) {
	c := metav1.Condition{Type: workers.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: w.Generation}
	switch {
	case conflict != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "ServiceConflict", conflict
	case s.DesiredReplicas == 0:
		c.Reason, c.Message = "ScaledToZero", "no pod is needed at present"
		if w.Spec.Scale == nil {
			c.Status, c.Message = metav1.ConditionFalse, "replicas is 0"
		}
	case s.ReadyReplicas == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "NoReadyPod", "no pod is ready"+waiting
	case s.ReadyReplicas < s.DesiredReplicas:
		c.Reason = "PodsStarting"
		c.Message = fmt.Sprintf("%d of %d pods are ready%s", s.ReadyReplicas, s.DesiredReplicas, waiting)
	default:
		c.Reason, c.Message = "PodsReady", count.Of(s.ReadyReplicas, "ready pod")
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

// other sets the condition of a worker whose messages or replies another worker gets.
func other(w *workers.Worker, s *workers.WorkerStatus, condition, name string, missing bool, gets, without string) {
	if name == "" {
		meta.RemoveStatusCondition(&s.Conditions, condition)
		return
	}
	c := metav1.Condition{
		Type: condition, Status: metav1.ConditionTrue, Reason: "WorkerExists", ObservedGeneration: w.Generation,
		Message: "worker " + name + " gets " + gets,
	}
	if missing {
		c.Status, c.Reason = metav1.ConditionFalse, "NoWorker"
		c.Message = "worker " + name + " does not exist: " + without
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

// queue sets the condition of a worker whose messages are not on its server's disk.
func queue(w *workers.Worker, s *workers.WorkerStatus) {
	if w.Spec.Delivery.Store != workers.StoreNATS {
		meta.RemoveStatusCondition(&s.Conditions, workers.ConditionQueue)
		return
	}
	c := metav1.Condition{
		Type: workers.ConditionQueue, Status: metav1.ConditionTrue, Reason: "StreamWritable",
		ObservedGeneration: w.Generation, Message: "the NATS stream coracle-" + string(w.UID) + " keeps the messages",
	}
	switch {
	case s.QueueFailure != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "StreamUnavailable", s.QueueFailure
	case s.QueueServer == "":
		c.Status, c.Reason = metav1.ConditionUnknown, "StreamNotOpened"
		c.Message = "the first message opens the NATS stream coracle-" + string(w.UID)
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

var kind = workers.GroupVersion.WithKind("Worker")

// Service returns the worker's service. It is headless: it only names the receivers of messages, which do not pass
// through it.
func Service(w *workers.Worker) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: w.Name, Labels: map[string]string{workers.LabelWorker: w.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w, kind)},
		},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{workers.LabelWorker: w.Name}},
	}
	if p := w.Spec.Push; p != nil {
		s.Spec.Ports = []corev1.ServicePort{{Name: "events", Port: p.Port, Protocol: corev1.ProtocolTCP}}
	}
	return s
}

// Set returns the replica set of the worker's present specification. Its name contains a hash of it.
func Set(w *workers.Worker, replicas int32) *appsv1.ReplicaSet {
	template := Template(w)
	text, _ := json.Marshal(template) // cannot fail for these fields
	hash := fnv.New64a()
	_, _ = hash.Write(text)
	name := fmt.Sprintf("%.40s-%s", w.Name, rand.SafeEncodeString(fmt.Sprint(hash.Sum64()))[:10])
	template.Labels[hashLabel] = name
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: name, Labels: map[string]string{workers.LabelWorker: w.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{workers.LabelWorker: w.Name, hashLabel: name}},
			Template: template},
	}
}

// hashLabel distinguishes the pods of one specification from other pods.
const hashLabel = "workers.coracle.dev/set"

// Template returns the template of the worker's pods.
func Template(w *workers.Worker) corev1.PodTemplateSpec {
	var t corev1.PodTemplateSpec
	if w.Spec.Template != nil {
		w.Spec.Template.DeepCopyInto(&t)
	}
	c := corev1.Container{Name: workers.ContainerName}
	others := slices.DeleteFunc(t.Spec.Containers, func(o corev1.Container) bool {
		if o.Name == c.Name {
			c = o
		}
		return o.Name == c.Name
	})
	c.Image, c.Command, c.Args, c.Env = w.Spec.Image, w.Spec.Command, w.Spec.Args, slices.Clone(w.Spec.Env)
	c.ImagePullPolicy = cmp.Or(c.ImagePullPolicy, corev1.PullIfNotPresent)
	if w.Spec.Function != "" {
		c.Image = Image
		c.Env = append(c.Env, corev1.EnvVar{Name: workers.FunctionEnv, Value: string(w.Spec.Function)})
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: workers.ConcurrencyEnv, Value: fmt.Sprint(w.Spec.Concurrency)})
	if len(w.Spec.Parameters) > 0 {
		text, _ := json.Marshal(w.Spec.Parameters) // cannot fail for a map of strings
		c.Env = append(c.Env, corev1.EnvVar{Name: workers.ParametersEnv, Value: string(text)})
	}
	// Kubernetes expands $(NAME) in values, which must not happen to the parameters.
	for i := range c.Env {
		if e := &c.Env[i]; e.Name == workers.ParametersEnv {
			e.Value = escape(e.Value)
		}
	}
	if w.Spec.Resources != nil {
		c.Resources = *w.Spec.Resources.DeepCopy()
	}
	if p := w.Spec.Push; p != nil {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: "events", ContainerPort: p.Port, Protocol: corev1.ProtocolTCP})
	}
	t.Labels = with(t.Labels, w.Spec.PodLabels)
	t.Labels[workers.LabelWorker] = w.Name
	t.Annotations = with(t.Annotations, nil)
	t.Annotations[workers.AnnotationQueue] = workers.QueueOf(w).Annotation()
	if len(others) > 0 {
		t.Annotations[defaultContainer] = c.Name
	}
	t.Spec.ServiceAccountName = w.Spec.ServiceAccountName
	t.Spec.Containers = append([]corev1.Container{c}, others...) // the first one gets the messages
	return t
}

// defaultContainer is kubectl's annotation of the container that logs and exec choose.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// with returns m with the entries of more; it is never nil.
func with(m, more map[string]string) map[string]string {
	all := maps.Clone(m)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, more)
	return all
}

func escape(s string) string {
	var out []byte
	for i := range len(s) {
		if s[i] == '$' {
			out = append(out, '$')
		}
		out = append(out, s[i])
	}
	return string(out)
}
