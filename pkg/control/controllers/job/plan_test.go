package job

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/engine/indexes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func aJob(completions, parallelism int32, change ...func(*batchv1.Job)) *batchv1.Job {
	l := map[string]string{batchv1.ControllerUidLabel: "job"}
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "j", UID: "job"}, Spec: batchv1.JobSpec{
		Completions: &completions, Parallelism: &parallelism, BackoffLimit: ptr(int32(6)),
		CompletionMode: ptr(batchv1.IndexedCompletion),
		Selector:       &metav1.LabelSelector{MatchLabels: l},
		Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}},
	}}
	for _, f := range change {
		f(j)
	}
	return j
}

func limitPerIndex(n int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.BackoffLimitPerIndex, j.Spec.BackoffLimit = &n, ptr(int32(1<<31-1)) }
}

// podAt returns a pod with an index. If failed is not zero, the pod failed that long ago.
func podAt(j *batchv1.Job, index, failures int, failed time.Duration) *corev1.Pod {
	p := newPod(j, Slot{Index: index, Failed: failures})
	p.Name = fmt.Sprintf("p%d-%d", index, failures)
	p.UID, p.Status.Phase = types.UID(p.Name), corev1.PodRunning
	if failed > 0 {
		p.Status.Phase = corev1.PodFailed
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-failed))},
		}
	}
	return p
}

func indexesOf(slots []Slot) (out []int) {
	for _, s := range slots {
		out = append(out, s.Index)
	}
	return out
}

// A step of a job with 10^9 completions costs no more than one of a job with 500.
func TestHugeJobs(t *testing.T) {
	const most = 1_000_000_000
	for name, j := range map[string]*batchv1.Job{
		"both": aJob(most, most), "completions": aJob(most, 10_000),
		"not indexed": aJob(most, most, func(j *batchv1.Job) { j.Spec.CompletionMode = nil }),
		"resumed": aJob(most, most, func(j *batchv1.Job) {
			j.Status.CompletedIndexes = "0-499999999,500000001-999999990"
		}),
	} {
		t.Run(name, func(t *testing.T) {
			r := testing.Benchmark(func(b *testing.B) {
				for b.Loop() {
					a, err := Plan(Observed{Job: j}, now)
					require.NoError(b, err)
					require.NotEmpty(b, a.Create)
					require.LessOrEqual(b, len(a.Create), step)
				}
			})
			require.Less(t, r.AllocedBytesPerOp(), int64(200_000))
		})
	}
	a, err := Plan(Observed{
		Job: aJob(most, 4, func(j *batchv1.Job) { j.Status.CompletedIndexes = "0-499999999,500000001-999999990" }),
	}, now)
	require.NoError(t, err)
	require.Equal(t, []int{500_000_000, 999_999_991, 999_999_992, 999_999_993}, indexesOf(a.Create))
	require.EqualValues(t, 999_999_990, a.Status.Succeeded)
}

// An index in back-off does not delay others, and its next pod continues the failure count.
func TestBackoffOfAnIndex(t *testing.T) {
	j := aJob(10, 2, limitPerIndex(5))
	o := Observed{Job: j, Pods: []*corev1.Pod{podAt(j, 0, 1, 5*time.Second), podAt(j, 1, 0, time.Minute)}}
	a, err := Plan(o, now)
	require.NoError(t, err)
	require.Equal(t, []Slot{{Index: 1, Failed: 1}, {Index: 2}}, a.Create)
	require.Equal(t, 15*time.Second, a.Again, "20 s after the second failure")
	require.Empty(t, a.Untrack, "the failed pods stay until they are replaced")
	require.Zero(t, a.Status.Failed)

	o.Pods = append(o.Pods, podAt(j, 1, 1, 0))
	a, err = Plan(o, now)
	require.NoError(t, err)
	require.Equal(t, []types.UID{"p1-0"}, a.Status.UncountedTerminatedPods.Failed)
	require.Equal(t, []*corev1.Pod{o.Pods[1]}, a.Untrack)
}

func TestBackoffOfAJob(t *testing.T) {
	for n, want := range map[int32]time.Duration{
		0:       0,
		1:       10 * time.Second,
		2:       20 * time.Second,
		6:       320 * time.Second,
		7:       10 * time.Minute,
		1 << 30: 10 * time.Minute,
	} {
		require.Equal(t, want, Failures{InARow: n, Last: now}.left(now), n)
	}
	j := aJob(3, 1)
	a, err := Plan(Observed{Job: j, Pods: []*corev1.Pod{podAt(j, 0, 0, 4*time.Second)}}, now)
	require.NoError(t, err)
	require.Empty(t, a.Create)
	require.Equal(t, 6*time.Second, a.Again)
	require.EqualValues(t, 1, a.Failures.InARow)
	require.Equal(t, a.Failures,
		rebuild([]*corev1.Pod{func() *corev1.Pod { p := podAt(j, 0, 0, 4*time.Second); p.Finalizers = nil; return p }()}),
		"a restart does not shorten it")
}

func TestPodsOfAnIndexedJob(t *testing.T) {
	j := aJob(20, 20, limitPerIndex(1))
	j.Name = strings.Repeat("n", 60)
	j.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "a"}, {Name: "b", Env: []corev1.EnvVar{{Name: indexEnv, Value: "own"}}},
	}
	p := newPod(j, Slot{Index: 12, Failed: 1, Ignored: 2})
	require.Equal(t, strings.Repeat("n", 54)+"-12-", p.GenerateName)
	require.Equal(t, "12", p.Labels[batchv1.JobCompletionIndexAnnotation])
	require.Equal(t, "1", p.Annotations[batchv1.JobIndexFailureCountAnnotation])
	require.Equal(t, "2", p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation])
	require.Equal(t, "metadata.labels['batch.kubernetes.io/job-completion-index']",
		p.Spec.Containers[0].Env[0].ValueFrom.FieldRef.FieldPath)
	require.Equal(t, []corev1.EnvVar{{Name: indexEnv, Value: "own"}}, p.Spec.Containers[1].Env)
	require.True(t, tracked(p))
	require.Empty(t, j.Spec.Template.Finalizers, "Plan does not change the job")
	require.Empty(t, j.Spec.Template.Spec.Containers[0].Env)
}

// Each index keeps one pod, the one that is furthest along. Pods with an invalid index are removed.
func TestRepeatedIndexes(t *testing.T) {
	j := aJob(3, 3)
	pending := podAt(j, 0, 0, 0)
	pending.Name, pending.UID, pending.Status.Phase = "pending", "pending", corev1.PodPending
	beyond, garbage := podAt(j, 3, 0, 0), podAt(j, 1, 0, 0)
	garbage.Annotations[batchv1.JobCompletionIndexAnnotation] = "-7"
	a, err := Plan(Observed{Job: j, Pods: []*corev1.Pod{pending, podAt(j, 0, 0, 0), beyond, garbage}}, now)
	require.NoError(t, err)
	require.ElementsMatch(t, []*corev1.Pod{pending, beyond, garbage}, a.Discard)
	require.Empty(t, a.Create, "only once the others are gone")
	require.EqualValues(t, 1, a.Status.Active)
}

func TestSuccessPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		indexes string
		count   int32
		done    string
		met     bool
	}{
		"all":            {indexes: "0,2", done: "0-2", met: true},
		"not all":        {indexes: "0,3", done: "0-2"},
		"enough of them": {indexes: "0-5", count: 2, done: "4,5", met: true},
		"others":         {indexes: "0-3", count: 2, done: "3-9"},
		"any":            {count: 3, done: "1,5,7", met: true},
		"too few":        {count: 3, done: "1,5"},
		"none there":     {indexes: "20", done: "0-9"},
	} {
		t.Run(name, func(t *testing.T) {
			rule := batchv1.SuccessPolicyRule{}
			if c.indexes != "" {
				rule.SucceededIndexes = &c.indexes
			}
			if c.count > 0 {
				rule.SucceededCount = &c.count
			}
			_, met := succeeds(&batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{rule}}, indexes.Parse(c.done, 10), 10)
			require.Equal(t, c.met, met)
		})
	}
}
