package controllers_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// jobOf returns a job whose containers exit at once with the given code.
func jobOf(name string, exit int, completions, parallelism int32) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &parallelism, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "c", Image: "x", Args: []string{"exit", fmt.Sprint(exit)}}},
			}},
		},
	}
}

func (c *cluster) jobIs(name string, t batchv1.JobConditionType) *batchv1.Job {
	c.T.Helper()
	return controlplane.Until(c, &batchv1.JobList{}, "default", name, func(j *batchv1.Job) bool {
		return condition(j, t) != nil
	})
}

func condition(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func (c *cluster) podsOf(name string) []corev1.Pod {
	c.T.Helper()
	var pods corev1.PodList
	require.NoError(c.T,
		c.List(c.Ctx, &pods, ctrl.InNamespace("default"), ctrl.MatchingLabels{batchv1.JobNameLabel: name}))
	return pods.Items
}

func TestJobsComplete(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	c.Make(jobOf("plain", 0, 5, 2))
	ix := jobOf("indexed", 0, 4, 3)
	mode := batchv1.IndexedCompletion
	ix.Spec.CompletionMode = &mode
	c.Make(ix)
	c.Make(jobOf("nothing", 0, 0, 3))

	plain := c.jobIs("plain", batchv1.JobComplete)
	require.EqualValues(t, 5, plain.Status.Succeeded)
	require.Zero(t, plain.Status.Failed+plain.Status.Active+*plain.Status.Ready+*plain.Status.Terminating)
	require.NotNil(t, plain.Status.CompletionTime)
	require.Equal(t, batchv1.JobReasonCompletionsReached, condition(plain, batchv1.JobComplete).Reason)
	require.Len(t, c.podsOf("plain"), 5)
	for _, p := range c.podsOf("plain") {
		require.Empty(t, p.Finalizers)
	}

	is := c.jobIs("indexed", batchv1.JobComplete)
	require.EqualValues(t, 4, is.Status.Succeeded)
	require.Equal(t, "0-3", is.Status.CompletedIndexes)
	for _, p := range c.podsOf("indexed") {
		i := p.Annotations[batchv1.JobCompletionIndexAnnotation]
		require.Equal(t, "indexed-"+i, p.Spec.Hostname)
		require.Equal(t, i, p.Labels[batchv1.JobCompletionIndexAnnotation])
		require.Contains(t, p.Name, "indexed-"+i+"-")
		require.Equal(t, "JOB_COMPLETION_INDEX", p.Spec.Containers[0].Env[0].Name)
	}
	require.Zero(t, c.jobIs("nothing", batchv1.JobComplete).Status.Succeeded)
	require.Empty(t, c.podsOf("nothing"))
	controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
		return e.InvolvedObject.Name == "plain" && e.Reason == "Completed" && e.Source.Component == "job-controller"
	})
}

func TestJobsFail(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	zero := int32(0)
	limit := jobOf("limit", 1, 2, 1)
	limit.Spec.BackoffLimit = &zero
	policy := jobOf("policy", 3, 2, 1)
	policy.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action: batchv1.PodFailurePolicyActionFailJob,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3},
		},
	}}}
	perIndex := jobOf("per-index", 1, 2, 2)
	mode := batchv1.IndexedCompletion
	perIndex.Spec.CompletionMode, perIndex.Spec.BackoffLimitPerIndex = &mode, &zero
	second := int64(1)
	deadline := jobOf("deadline", 0, 1, 1)
	deadline.Spec.ActiveDeadlineSeconds = &second
	deadline.Spec.Template.Spec.Containers[0].Args = nil
	c.Make(limit, policy, perIndex, deadline)

	is := c.jobIs("limit", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonBackoffLimitExceeded, condition(is, batchv1.JobFailed).Reason)
	require.EqualValues(t, 1, is.Status.Failed)
	require.Len(t, c.podsOf("limit"), 1)
	is = c.jobIs("policy", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonPodFailurePolicy, condition(is, batchv1.JobFailed).Reason)
	require.EqualValues(t, 1, is.Status.Failed)
	require.Contains(t, condition(is, batchv1.JobFailed).Message,
		"failed with exit code 3 matching FailJob rule at index 0")
	is = c.jobIs("per-index", batchv1.JobFailed)
	require.Equal(t, "0,1", *is.Status.FailedIndexes)
	require.EqualValues(t, 2, is.Status.Failed)
	require.Equal(t, batchv1.JobReasonFailedIndexes, condition(is, batchv1.JobFailed).Reason)
	is = c.jobIs("deadline", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonDeadlineExceeded, condition(is, batchv1.JobFailed).Reason)
	require.EqualValues(t, 1, is.Status.Failed)
	require.Zero(t, *is.Status.Terminating)
}

func TestJobsAreSuspended(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	j := jobOf("batch", 0, 3, 2)
	j.Spec.Template.Spec.Containers[0].Args = nil // the pods run until they are deleted
	c.Make(j)
	controlplane.Until(c, &batchv1.JobList{}, "default", "batch", func(j *batchv1.Job) bool {
		return j.Status.Active == 2 && *j.Status.Ready == 2
	})
	change := func(f func(*batchv1.Job)) {
		t.Helper()
		require.Eventually(t, func() bool {
			var is batchv1.Job
			require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(j), &is))
			next := is.DeepCopy()
			f(next)
			return c.Update(c.Ctx, next) == nil
		}, controlplane.Patience, time.Millisecond)
	}
	yes, no := true, false
	change(func(j *batchv1.Job) { j.Spec.Suspend = &yes })
	is := controlplane.Until(c, &batchv1.JobList{}, "default", "batch", func(j *batchv1.Job) bool {
		return condition(j, batchv1.JobSuspended) != nil && j.Status.Active == 0 && *j.Status.Terminating == 0
	})
	require.Nil(t, is.Status.StartTime)
	require.Zero(t, is.Status.Failed)
	require.Empty(t, c.podsOf("batch"))
	change(func(j *batchv1.Job) { j.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "a"} })
	change(func(j *batchv1.Job) { j.Spec.Suspend = &no })
	is = controlplane.Until(c, &batchv1.JobList{}, "default", "batch", func(j *batchv1.Job) bool {
		return j.Status.Active == 2
	})
	require.NotNil(t, is.Status.StartTime)
	require.Equal(t, "a", c.podsOf("batch")[0].Spec.NodeSelector[corev1.LabelHostname])
	require.NoError(t, c.Delete(c.Ctx, j, ctrl.PropagationPolicy(metav1.DeletePropagationBackground)))
	for _, p := range c.podsOf("batch") {
		c.Gone(p.DeepCopy())
	}
}

func TestCronJobsRun(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	template := jobOf("", 0, 1, 1).Spec
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tick"}, Spec: batchv1.CronJobSpec{
		Schedule: "@every 1s", ConcurrencyPolicy: batchv1.ForbidConcurrent,
		JobTemplate: batchv1.JobTemplateSpec{Spec: template},
	}}
	never := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "never"}, Spec: batchv1.CronJobSpec{
			Schedule: "0 0 30 2 *", JobTemplate: batchv1.JobTemplateSpec{Spec: template},
		},
	}
	c.Make(cron, never)
	ended := controlplane.Until(c, &batchv1.JobList{}, "default", "", func(j *batchv1.Job) bool {
		return condition(j, batchv1.JobComplete) != nil
	})
	is := controlplane.Until(c, &batchv1.CronJobList{}, "default", "tick", func(c *batchv1.CronJob) bool {
		return c.Status.LastScheduleTime != nil && c.Status.LastSuccessfulTime != nil &&
			!slices.ContainsFunc(c.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == ended.UID })
	})
	var jobs batchv1.JobList
	require.NoError(t, c.List(c.Ctx, &jobs, ctrl.InNamespace("default")))
	require.NotEmpty(t, jobs.Items)
	for _, j := range jobs.Items {
		require.True(t, metav1.IsControlledBy(&j, is))
		require.NotEmpty(t, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	}
	controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
		return e.InvolvedObject.Name == "never" && e.Reason == "InvalidSchedule" && e.Source.Component == "cronjob-controller"
	})
	bad := cron.DeepCopy()
	moon := "Moon/Base"
	bad.ObjectMeta, bad.Spec.TimeZone = metav1.ObjectMeta{Namespace: "default", Name: "bad"}, &moon
	require.ErrorContains(t, c.Create(c.Ctx, bad), "unknown time zone Moon/Base")
	require.NoError(t, c.Delete(c.Ctx, is, ctrl.PropagationPolicy(metav1.DeletePropagationForeground)))
	c.Gone(is.DeepCopy())
	// The CronJob may have made another Job from a stale cache. The garbage collector deletes it later.
	require.Eventually(t, func() bool {
		return c.List(c.Ctx, &jobs, ctrl.InNamespace("default")) == nil && len(jobs.Items) == 0
	}, controlplane.Patience, time.Millisecond)
}

func TestFinishedJobsExpire(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	zero := int32(0)
	j := jobOf("brief", 0, 2, 2)
	j.Spec.TTLSecondsAfterFinished = &zero
	c.Make(j)
	c.Gone(j)
	require.Empty(t, c.podsOf("brief"))
}

// Pods that outlive a deleted Job can be deleted: none keeps the Job's finalizer.
func TestJobsLetGoOfTheirPods(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	for name, policy := range map[string]metav1.DeletionPropagation{
		"left": metav1.DeletePropagationOrphan, "taken": metav1.DeletePropagationBackground,
	} {
		j := jobOf(name, 0, 2, 2)
		j.Spec.Template.Spec.Containers[0].Args = nil
		c.Make(j)
		controlplane.Until(c, &batchv1.JobList{}, "default", name, func(j *batchv1.Job) bool {
			return j.Status.Active == 2 && *j.Status.Ready == 2
		})
		require.NoError(t, c.Delete(c.Ctx, j, ctrl.PropagationPolicy(policy)))
		c.Gone(j)
	}
	require.Eventually(t, func() bool {
		pods := c.podsOf("left")
		return len(pods) == 2 && len(pods[0].Finalizers)+len(pods[1].Finalizers) == 0 && len(c.podsOf("taken")) == 0
	}, controlplane.Patience, time.Millisecond)
}

func TestJobsOfOthersAreLeftAlone(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	other := "example.com/queue"
	j := jobOf("others", 0, 2, 2)
	j.Spec.ManagedBy = &other
	c.Make(j, jobOf("ours", 0, 1, 1))
	c.jobIs("ours", batchv1.JobComplete)
	require.Empty(t, c.podsOf("others"))
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(j), j))
	require.Nil(t, j.Status.StartTime)
}

// BenchmarkJob measures an indexed Job of 10,000 pods that go through the scheduler. 200 simulated nodes end them
// at once and write their status.
func BenchmarkJob(b *testing.B) {
	c := start(b, controlplane.Options{Log: slog.LevelWarn})
	for i := range 200 {
		c.Node(fmt.Sprint("n", i))
	}
	controlplane.Until(c, &corev1.ServiceAccountList{}, "default", "default", func(*corev1.ServiceAccount) bool {
		return true
	})
	bound := make(chan *corev1.Pod)
	watching, stop := context.WithCancel(c.Ctx)
	var nodes sync.WaitGroup
	defer nodes.Wait()
	defer stop()
	nodes.Go(func() {
		// Under load the watch falls behind by more changes than the cache retains. It then ends with an error and
		// is restarted.
		for watching.Err() == nil {
			w, err := c.Watch(watching, &corev1.PodList{})
			if err != nil {
				continue
			}
			for e := range w.ResultChan() {
				p, ok := e.Object.(*corev1.Pod)
				if !ok || e.Type == "DELETED" || p.Spec.NodeName == "" || p.Status.Phase != corev1.PodPending {
					continue
				}
				select {
				case bound <- p:
				case <-watching.Done():
				}
			}
			w.Stop()
		}
	})
	for range 16 {
		nodes.Go(func() {
			for {
				select {
				case p := <-bound:
					next := p.DeepCopy()
					next.Status.Phase = corev1.PodSucceeded
					_ = c.Status().Update(c.Ctx, next)
				case <-watching.Done():
					return
				}
			}
		})
	}
	pods := int32(10_000)
	if testing.Short() {
		pods = 1_000
	}
	n := 0
	for b.Loop() {
		n++
		j := jobOf(fmt.Sprint("bench", n), 0, pods, 2000)
		mode := batchv1.IndexedCompletion
		j.Spec.CompletionMode = &mode
		c.Make(j)
		ctx, cancel := context.WithTimeout(c.Ctx, 3*time.Minute)
		jobs, err := c.Watch(ctx, &batchv1.JobList{})
		require.NoError(b, err)
		for e := range jobs.ResultChan() {
			if is, ok := e.Object.(*batchv1.Job); ok && is.UID == j.UID && condition(is, batchv1.JobComplete) != nil {
				require.EqualValues(b, pods, is.Status.Succeeded)
				require.Equal(b, fmt.Sprintf("0-%d", pods-1), is.Status.CompletedIndexes)
				break
			}
		}
		jobs.Stop()
		if ctx.Err() != nil {
			require.NoError(b, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(j), j))
			b.Fatalf("not complete: %+v", j.Status)
		}
		cancel()
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(n), "s/job")
	b.ReportMetric(float64(pods)*float64(n)/b.Elapsed().Seconds(), "pods/s")
}

// TestJobsOverHTTP runs Jobs with lagging caches, each reconciler with only the rights of its bootstrap role.
func TestJobsOverHTTP(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: true})
	c.Node("a")
	zero, mode := int32(0), batchv1.IndexedCompletion
	indexed := jobOf("indexed", 0, 30, 10)
	indexed.Spec.CompletionMode = &mode
	brief := jobOf("brief", 0, 1, 1)
	brief.Spec.TTLSecondsAfterFinished = &zero
	c.Make(indexed, jobOf("plain", 0, 12, 5), brief, &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tick"}, Spec: batchv1.CronJobSpec{
			Schedule: "@every 1s", ConcurrencyPolicy: batchv1.ForbidConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: jobOf("", 0, 1, 1).Spec},
		},
	})
	require.Equal(t, "0-29", c.jobIs("indexed", batchv1.JobComplete).Status.CompletedIndexes)
	require.Len(t, c.podsOf("indexed"), 30, "no index ran twice, though caches lag")
	require.EqualValues(t, 12, c.jobIs("plain", batchv1.JobComplete).Status.Succeeded)
	require.Len(t, c.podsOf("plain"), 12)
	c.Gone(brief)
	controlplane.Until(c, &batchv1.CronJobList{}, "default", "tick", func(c *batchv1.CronJob) bool {
		return c.Status.LastSuccessfulTime != nil
	})
	j := jobOf("stopped", 0, 2, 2)
	j.Spec.Template.Spec.Containers[0].Args = nil
	c.Make(j)
	controlplane.Until(c, &batchv1.JobList{}, "default", "stopped", func(j *batchv1.Job) bool {
		return j.Status.Active == 2 && *j.Status.Ready == 2
	})
	require.NoError(t,
		c.Patch(c.Ctx, j, ctrl.RawPatch("application/merge-patch+json", []byte(`{"spec":{"parallelism":0}}`))))
	controlplane.Until(c, &batchv1.JobList{}, "default", "stopped", func(j *batchv1.Job) bool {
		return j.Status.Active == 0 && *j.Status.Terminating == 0
	})
	require.NoError(t, c.Delete(c.Ctx, j, ctrl.PropagationPolicy(metav1.DeletePropagationForeground)))
	c.Gone(j)
}
