package job

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// indexEnv is the environment variable with the completion index, for containers of an Indexed job.
const indexEnv = "JOB_COMPLETION_INDEX"

const noIndex = -1

// longestPrefix is the longest generateName that the API server does not truncate.
const longestPrefix = 58

func indexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

func perIndex(j *batchv1.Job) bool { return indexed(j) && j.Spec.BackoffLimitPerIndex != nil }

// tracked reports whether the pod has the finalizer that keeps it until it is counted.
func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

// number returns an annotation's value, a number from 0 to 2^31-1, or otherwise if it is missing or invalid.
func number(p *corev1.Pod, annotation string, otherwise int) int {
	n, err := strconv.ParseInt(p.Annotations[annotation], 10, 32)
	if err != nil || n < 0 {
		return otherwise
	}
	return int(n)
}

func indexOf(p *corev1.Pod) int { return number(p, batchv1.JobCompletionIndexAnnotation, noIndex) }

// failuresOf returns how many earlier pods of this index failed: counted, and ignored by a policy.
func failuresOf(p *corev1.Pod) (counted, ignored int) {
	return number(p, batchv1.JobIndexFailureCountAnnotation, 0), number(p, batchv1.JobIndexIgnoredFailureCountAnnotation,
		0)
}

// Slot is a pod to create.
type Slot struct {
	// Index is the completion index, or noIndex if the job is not Indexed.
	Index int
	// Failed and Ignored count the failures of the pods that this one replaces, if there is a limit per index.
	Failed, Ignored int
}

func newPod(j *batchv1.Job, s Slot) *corev1.Pod {
	p := podstate.FromTemplate(&j.Spec.Template, j, kind)
	if !tracked(p) {
		p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if s.Index == noIndex {
		return p
	}
	index := strconv.Itoa(s.Index)
	suffix := "-" + index + "-"
	p.GenerateName = j.Name[:min(len(j.Name), longestPrefix-len(suffix))] + suffix
	p.Spec.Hostname = fmt.Sprintf("%s-%d", j.Name, s.Index)
	p.Labels, p.Annotations = with(p.Labels, batchv1.JobCompletionIndexAnnotation, index), with(p.Annotations,
		batchv1.JobCompletionIndexAnnotation, index)
	if perIndex(j) {
		p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(s.Failed)
		if s.Ignored > 0 {
			p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(s.Ignored)
		}
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexEnv }) {
				c.Env = append(c.Env, corev1.EnvVar{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{
					FieldRef: &corev1.ObjectFieldSelector{
						FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']",
					},
				}})
			}
		}
	}
	return p
}

func with(m map[string]string, k, v string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m[k] = v
	return m
}

var phaseRank = map[corev1.PodPhase]int{corev1.PodPending: 0, "": 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}

// leastWork orders pods by how little work they have done: unassigned, pending, not ready and young pods come first.
func leastWork(a, b *corev1.Pod) int {
	return cmp.Or(
		first(a.Spec.NodeName == "", b.Spec.NodeName == ""),
		cmp.Compare(phaseRank[a.Status.Phase], phaseRank[b.Status.Phase]),
		first(!podstate.Ready(a), !podstate.Ready(b)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
