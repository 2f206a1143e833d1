package job

import (
	"context"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// batchDelay is the delay between a pod's change and the reconciliation of its job, so that changes are batched.
const batchDelay = 10 * time.Millisecond

// With these indexes the cost of a call depends on the number of running and uncounted pods, not of ended ones.
const (
	// podIndex finds the pods of a job by ofJob, except ended ones that are counted. It finds pods without a
	// controller by without and, if they have the label that the API server adds to a job's template, by labeled.
	podIndex = "batch.job.pods"
	// jobIndex finds jobs with manualSelector by manual, and all others by labeled.
	jobIndex = "batch.job.selector"
)

func ofJob(namespace, name string) string { return "job:" + namespace + "/" + name }
func without(namespace string) string     { return "none:" + namespace }
func labeled(uid string) string           { return "uid:" + uid }
func manual(namespace string) string      { return "manual:" + namespace }

func podValues(o client.Object) []string {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	ref := metav1.GetControllerOfNoCopy(p)
	switch {
	case ref == nil && len(p.Labels) == 0:
		return nil
	case ref == nil:
		values := []string{without(p.Namespace)}
		if uid := p.Labels[batchv1.ControllerUidLabel]; uid != "" {
			values = append(values, labeled(uid))
		}
		return values
	case isJob(ref) && (tracked(p) || !podstate.Ended(p)):
		return []string{ofJob(p.Namespace, ref.Name)}
	}
	return nil
}

func isJob(ref *metav1.OwnerReference) bool {
	group, _, _ := strings.Cut(ref.APIVersion, "/")
	return ref.Kind == kind.Kind && group == kind.Group
}

func ownSelector(j *batchv1.Job) bool { return j.Spec.ManualSelector != nil && *j.Spec.ManualSelector }

func jobValues(o client.Object) []string {
	j, ok := o.(*batchv1.Job)
	switch {
	case !ok:
		return nil
	case ownSelector(j):
		return []string{manual(j.Namespace)}
	}
	return []string{labeled(string(j.UID))}
}

// jobs maps a job to itself, after a delay if only its status changed.
func jobs(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
	o := is
	if o == nil {
		o = was
	}
	req := engine.RequestFor(o.GetNamespace(), o.GetName())
	if was != nil && is != nil && !engine.SpecChanged(was, is) {
		env.Enqueue(req, batchDelay)
		return nil
	}
	return []engine.Request{req}
}

// pods maps a pod to its job. A pod without a controller maps to the jobs that could adopt it or, if there are
// none and it has the finalizer, to itself.
func pods(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Pod)
	after, _ := is.(*corev1.Pod)
	if before != nil && after != nil && !matters(before, after) {
		return nil
	}
	for _, p := range []*corev1.Pod{before, after} {
		if p == nil {
			continue
		}
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
			if isJob(ref) {
				env.Enqueue(engine.RequestFor(p.Namespace, ref.Name), batchDelay)
			}
			continue
		}
		if p != after || len(p.Labels) == 0 && !tracked(p) {
			continue
		}
		adopters, err := adopters(ctx, env.ByIndex, p)
		if err != nil {
			env.Log.Warn("could not find the job of a pod", "pod", client.ObjectKeyFromObject(p), "error", err)
		}
		for _, j := range adopters {
			env.Enqueue(engine.RequestFor(j.Namespace, j.Name), batchDelay)
		}
		if len(adopters) == 0 && tracked(p) {
			env.Enqueue(engine.RequestOf(orphan, p.Namespace, p.Name), batchDelay)
		}
	}
	return nil
}

func matters(was, is *corev1.Pod) bool {
	return was.Status.Phase != is.Status.Phase || (was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		tracked(was) != tracked(is) || podstate.Ready(was) != podstate.Ready(is) || restarts(was) != restarts(is) ||
		!equality.Semantic.DeepEqual(was.OwnerReferences, is.OwnerReferences) || !equality.Semantic.DeepEqual(was.Labels,
		is.Labels) ||
		indexOf(was) != indexOf(is)
}

func restarts(p *corev1.Pod) (n int32) {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			n += list[i].RestartCount
		}
	}
	return n
}

// finder is the type of engine.Env.ByIndex.
type finder func(ctx context.Context, list client.ObjectList, namespace, index, value string) error

func adopters(ctx context.Context, find finder, p *corev1.Pod) ([]batchv1.Job, error) {
	if p.DeletionTimestamp != nil {
		return nil, nil
	}
	var all, generated batchv1.JobList
	if err := find(ctx, &all, p.Namespace, jobIndex, manual(p.Namespace)); err != nil {
		return nil, err
	}
	if uid := p.Labels[batchv1.ControllerUidLabel]; uid != "" {
		if err := find(ctx, &generated, p.Namespace, jobIndex, labeled(uid)); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(slices.Concat(all.Items, generated.Items), func(j batchv1.Job) bool {
		s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
		return err != nil || s.Empty() || !s.Matches(labels.Set(p.Labels)) || finished(&j) || elsewhere(&j) ||
			j.DeletionTimestamp != nil
	}), nil
}
