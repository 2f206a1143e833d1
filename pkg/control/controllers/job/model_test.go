package job

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"

	"github.com/coracle-dev/coracle/pkg/engine/indexes"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)

func ptr[T any](v T) *T { return &v }

// drawJob draws a job as it is after defaulting and validation.
func drawJob(t *rapid.T) *batchv1.Job {
	l := map[string]string{batchv1.ControllerUidLabel: "job"}
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "j", UID: "job", ResourceVersion: "1", Generation: 1},
	}
	j.Spec = batchv1.JobSpec{
		Parallelism:  ptr(int32(rapid.IntRange(0, 4).Draw(t, "parallelism"))),
		BackoffLimit: ptr(rapid.SampledFrom([]int32{0, 2, 100}).Draw(t, "limit")),
		Selector:     &metav1.LabelSelector{MatchLabels: l}, CompletionMode: ptr(batchv1.NonIndexedCompletion),
		Suspend: ptr(rapid.Bool().Draw(t, "suspended")),
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: l}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		},
	}
	s := &j.Spec
	if rapid.IntRange(0, 3).Draw(t, "counted") > 0 {
		s.Completions = ptr(int32(rapid.IntRange(0, 6).Draw(t, "completions")))
	}
	if s.Completions != nil && rapid.Bool().Draw(t, "indexed") {
		s.CompletionMode = ptr(batchv1.IndexedCompletion)
		if rapid.Bool().Draw(t, "per index") {
			s.BackoffLimit, s.BackoffLimitPerIndex = ptr(int32(1<<31-1)), ptr(int32(rapid.IntRange(0, 2).Draw(t,
				"limit per index")))
			if rapid.Bool().Draw(t, "max") {
				s.MaxFailedIndexes = ptr(int32(1))
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "success policy") == 0 && *s.Completions > 1 {
			s.SuccessPolicy = &batchv1.SuccessPolicy{
				Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr("0-1"), SucceededCount: ptr(int32(1))}},
			}
		}
	}
	if rapid.Bool().Draw(t, "replaced once failed") {
		s.PodReplacementPolicy = ptr(batchv1.Failed)
		if rapid.Bool().Draw(t, "failure policy") {
			onExit := func(a batchv1.PodFailurePolicyAction, code int32) batchv1.PodFailurePolicyRule {
				return batchv1.PodFailurePolicyRule{
					Action: a,
					OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
						Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code},
					},
				}
			}
			s.PodFailurePolicy = &batchv1.PodFailurePolicy{
				Rules: []batchv1.PodFailurePolicyRule{onExit(batchv1.PodFailurePolicyActionIgnore, 42)},
			}
			if rapid.Bool().Draw(t, "may fail the job") {
				s.PodFailurePolicy.Rules = append(s.PodFailurePolicy.Rules, onExit(batchv1.PodFailurePolicyActionFailJob, 43))
			}
			if s.BackoffLimitPerIndex != nil {
				s.PodFailurePolicy.Rules = append(s.PodFailurePolicy.Rules, onExit(batchv1.PodFailurePolicyActionFailIndex, 44))
			}
		}
	}
	if rapid.IntRange(0, 5).Draw(t, "deadline") == 0 {
		s.ActiveDeadlineSeconds = ptr(int64(rapid.IntRange(1, 600).Draw(t, "seconds")))
	}
	return j
}

// happen applies one random change to a pod.
func (w *world) happen(t *rapid.T) {
	pods := w.sorted()
	if len(pods) == 0 {
		return
	}
	p := pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]
	end := func(phase corev1.PodPhase, code int32) {
		if podstate.Ended(p) {
			return
		}
		w.set(p, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase, p.Status.Conditions = "n", phase, nil
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				{
					Name: "c",
					State: corev1.ContainerState{
						Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(w.now)},
					},
				},
			}
		})
	}
	switch rapid.SampledFrom([]string{"run", "succeed", "succeed", "fail", "delete", "lost", "orphan"}).Draw(t, "event") {
	case "run":
		if p.Status.Phase == corev1.PodPending {
			w.set(p, func(p *corev1.Pod) {
				p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			})
		}
	case "succeed":
		end(corev1.PodSucceeded, 0)
	case "fail":
		end(corev1.PodFailed, rapid.SampledFrom([]int32{1, 42, 43, 44}).Draw(t, "code"))
	case "delete":
		if p.DeletionTimestamp == nil {
			w.remove(p)
		}
	case "lost": // with its node; podgc deletes it
		end(corev1.PodFailed, 137)
		if is := w.pods[p.Name]; is != nil && is.DeletionTimestamp == nil {
			w.remove(is)
		}
	case "orphan":
		if podstate.Active(p) {
			w.set(p, func(p *corev1.Pod) { p.OwnerReferences = nil })
		}
	}
}

func newWorld(t *rapid.T, j *batchv1.Job) *world {
	return &world{
		t:       t,
		job:     j,
		pods:    map[string]*corev1.Pod{},
		now:     now,
		version: 1,
		left:    -1,
		entered: map[types.UID]string{},
		dropped: map[types.UID]bool{},
	}
}

func (w *world) reconciler() *reconciler {
	r := newReconciler(engine.Env{
		Client: w,
		Cache:  w,
		Log:    slog.New(slog.DiscardHandler),
		Now:    func() time.Time { return w.now },
	}, w.find)
	r.writers = 1
	return r
}

// sync calls the reconciler until it stops writing.
func (w *world) sync(r *reconciler) {
	for range 1000 {
		was := w.writes
		if _, err := r.reconcile(w.t.Context(), engine.RequestFor("ns", "j")); err != nil && !apierrors.IsConflict(err) {
			w.fatalf("%v", err)
		}
		if w.writes == was {
			return
		}
	}
	w.fatalf("the reconciler does not stop writing")
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, drawJob(t))
		r := w.reconciler()
		t.Repeat(map[string]func(*rapid.T){
			"pod":     func(t *rapid.T) { w.happen(t) },
			"pods":    func(t *rapid.T) { w.happen(t); w.happen(t) },
			"rest":    func(*rapid.T) { w.sync(r) },
			"restart": func(*rapid.T) { r = w.reconciler() },
			"step": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "interleaved") {
					w.before = func() { w.happen(t) }
				}
				w.left = rapid.IntRange(0, 12).Draw(t, "writes until the kill")
				_, err := r.reconcile(t.Context(), engine.RequestFor("ns", "j"))
				if err != nil && !errors.Is(err, errKilled) && !apierrors.IsConflict(err) {
					w.fatalf("%v", err)
				}
				if w.before, w.left = nil, -1; errors.Is(err, errKilled) {
					r = w.reconciler()
				}
			},
			"time": func(t *rapid.T) { w.now = w.now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "s")) * time.Second) },
			"parallelism": func(t *rapid.T) {
				w.edit(func(s *batchv1.JobSpec) { s.Parallelism = ptr(int32(rapid.IntRange(0, 5).Draw(t, "n"))) })
			},
			"suspend": func(*rapid.T) { w.edit(func(s *batchv1.JobSpec) { s.Suspend = ptr(!*s.Suspend) }) },
		})
		w.end(r)
	})
}

func (w *world) edit(f func(*batchv1.JobSpec)) {
	next := w.job.DeepCopy()
	f(&next.Spec)
	next.Generation++
	w.version++
	next.ResourceVersion = time.Duration(w.version).String()
	w.job = next
}

// end lets every pod succeed: the job must finish, and every ended pod must be counted.
func (w *world) end(r *reconciler) {
	w.edit(func(s *batchv1.JobSpec) { s.Parallelism, s.Suspend = ptr(int32(3)), ptr(false) })
	for range 60 {
		w.sync(r)
		if finished(w.job) {
			break
		}
		w.now = w.now.Add(time.Hour)
		for _, p := range w.sorted() {
			if !podstate.Ended(p) {
				w.set(p, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n", corev1.PodSucceeded })
			}
		}
	}
	s := w.job.Status
	if !finished(w.job) {
		w.fatalf("the job does not finish")
	}
	for _, p := range w.sorted() {
		if tracked(p) && metav1.GetControllerOf(p) != nil {
			w.fatalf("pod %s still has its finalizer", p.Name)
		}
	}
	was := w.writes
	w.sync(r)
	require.Equal(w.t, was, w.writes, "no further writes")
	succeeded, failed := int32(0), int32(0)
	for _, as := range w.entered {
		if as == "failed" {
			failed++
		} else {
			succeeded++
		}
	}
	require.Equal(w.t, failed, s.Failed)
	if indexed(w.job) {
		require.EqualValues(w.t, w.completed().Count(), s.Succeeded)
	} else {
		require.Equal(w.t, succeeded, s.Succeeded)
	}
	if is(s.Conditions, batchv1.JobComplete) && w.job.Spec.Completions != nil && w.job.Spec.SuccessPolicy == nil {
		require.GreaterOrEqual(w.t, s.Succeeded, *w.job.Spec.Completions)
	}
	require.True(w.t, slices.IsSorted(w.completedList()))
}

func (w *world) completedList() (out []int) {
	for _, r := range indexes.Parse(w.job.Status.CompletedIndexes, 1<<31-1) {
		out = append(out, r.First, r.Last)
	}
	return out
}
