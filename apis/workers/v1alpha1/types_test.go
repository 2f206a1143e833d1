package v1alpha1

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestValidate(t *testing.T) {
	n := func(v int32) *int32 { return &v }
	for name, c := range map[string]struct {
		spec WorkerSpec
		want []string
	}{
		"image":            {WorkerSpec{Image: "a"}, nil},
		"function":         {WorkerSpec{Function: FunctionEcho}, nil},
		"neither":          {WorkerSpec{}, []string{"spec.image"}},
		"both":             {WorkerSpec{Image: "a", Function: FunctionEcho}, []string{"spec.function"}},
		"unknown function": {WorkerSpec{Function: "x"}, []string{"spec.function"}},
		"function, args":   {WorkerSpec{Function: FunctionEcho, Args: []string{"a"}}, []string{"spec.args"}},
		"function, push":   {WorkerSpec{Function: FunctionEcho, Mode: ModePush}, []string{"spec.mode"}},
		"reserved env":     {WorkerSpec{Image: "a", Env: []corev1.EnvVar{{Name: RuntimeEnv}}}, []string{"spec.env[0].name"}},
		"parameters": {
			WorkerSpec{Image: "a", Parameters: map[string]string{"a": strings.Repeat("x", maxParameter)}},
			[]string{"spec.parameters"},
		},
		"account": {WorkerSpec{Image: "a", ServiceAccountName: "A"}, []string{"spec.serviceAccountName"}},
		"label": {
			WorkerSpec{Image: "a", PodLabels: map[string]string{LabelWorker: "b"}},
			[]string{"spec.podLabels[" + LabelWorker + "]"},
		},
		"replicas":          {WorkerSpec{Image: "a", Replicas: n(1001)}, []string{"spec.replicas"}},
		"replicas, scale":   {WorkerSpec{Image: "a", Replicas: n(1), Scale: &WorkerScale{Max: 2}}, []string{"spec.scale"}},
		"empty range":       {WorkerSpec{Image: "a", Scale: &WorkerScale{Min: 3, Max: 2}}, []string{"spec.scale.min"}},
		"no maximum":        {WorkerSpec{Image: "a", Scale: &WorkerScale{}}, []string{"spec.scale.max"}},
		"concurrency":       {WorkerSpec{Image: "a", Concurrency: -1}, []string{"spec.concurrency"}},
		"queue":             {WorkerSpec{Image: "a", QueueLimit: 100_001}, []string{"spec.queueLimit"}},
		"timeout":           {WorkerSpec{Image: "a", TimeoutSeconds: 3601}, []string{"spec.timeoutSeconds"}},
		"mode":              {WorkerSpec{Image: "a", Mode: "Pull"}, []string{"spec.mode"}},
		"push without mode": {WorkerSpec{Image: "a", Push: &WorkerPush{}}, []string{"spec.push"}},
		"push path": {
			WorkerSpec{Image: "a", Mode: ModePush, Push: &WorkerPush{Path: "http://x"}}, []string{"spec.push.path"},
		},
		"promise": {
			WorkerSpec{Image: "a", Delivery: WorkerDelivery{Promise: "ExactlyOnce"}}, []string{"spec.delivery.promise"},
		},
		"attempts": {
			WorkerSpec{Image: "a", Delivery: WorkerDelivery{MaxAttempts: 3}}, []string{"spec.delivery.maxAttempts"},
		},
		"dead letter": {
			WorkerSpec{Image: "a", Delivery: WorkerDelivery{DeadLetter: "b"}}, []string{"spec.delivery.deadLetter"},
		},
		"replies":     {WorkerSpec{Image: "a", Delivery: WorkerDelivery{Replies: "b"}}, nil},
		"own replies": {WorkerSpec{Image: "a", Delivery: WorkerDelivery{Replies: "w"}}, []string{"spec.delivery.replies"}},
		"replies' name": {
			WorkerSpec{Image: "a", Delivery: WorkerDelivery{Replies: "Listener"}}, []string{"spec.delivery.replies"},
		},
		"batch":      {WorkerSpec{Image: "a", Batch: &WorkerBatch{}}, nil},
		"batch size": {WorkerSpec{Image: "a", Batch: &WorkerBatch{Size: 1001}}, []string{"spec.batch.size"}},
		"batch of more than the queue holds": {
			WorkerSpec{Image: "a", QueueLimit: 9, Batch: &WorkerBatch{}}, []string{"spec.batch.size"},
		},
		"batch window": {
			WorkerSpec{Image: "a", Batch: &WorkerBatch{WindowSeconds: 301}}, []string{"spec.batch.windowSeconds"},
		},
		"batch window beyond expiry": {
			WorkerSpec{Image: "a", QueueSeconds: 5, Batch: &WorkerBatch{WindowSeconds: 5}},
			[]string{"spec.batch.windowSeconds"},
		},
		"batch for a function": {WorkerSpec{Function: FunctionEcho, Batch: &WorkerBatch{}}, []string{"spec.batch"}},
		"batch with replies": {
			WorkerSpec{Image: "a", Batch: &WorkerBatch{}, Delivery: WorkerDelivery{Replies: "b"}},
			[]string{"spec.delivery.replies"},
		},
		"batch with a subject of replies": {
			WorkerSpec{Image: "a", Batch: &WorkerBatch{}, Delivery: WorkerDelivery{RepliesSubject: "n.b"}},
			[]string{"spec.delivery.repliesSubject"},
		},
		"own dead letter": {
			WorkerSpec{Image: "a", Delivery: WorkerDelivery{Promise: AtLeastOnce, DeadLetter: "w"}},
			[]string{"spec.delivery.deadLetter"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Worker{ObjectMeta: metav1.ObjectMeta{Name: "w"}, Spec: c.spec}
			Default(w)
			once := w.DeepCopy()
			Default(w)
			require.Equal(t, once, w)
			var got []string
			for _, e := range Validate(w) {
				got = append(got, e.Field)
			}
			require.Equal(t, c.want, got)
		})
	}
	require.NotEmpty(t, Validate(&Worker{ObjectMeta: metav1.ObjectMeta{Name: "a.b"}, Spec: WorkerSpec{Image: "a"}}),
		"the name is a service's")
}

// TestScaleOfBatches checks that a pod is meant to have as many messages as fit into its batches, twice.
func TestScaleOfBatches(t *testing.T) {
	for size, want := range map[int32]int32{0: 40, 50: 200, 1000: 4000} {
		w := &Worker{Spec: WorkerSpec{
			Image: "a", Concurrency: 2, Scale: &WorkerScale{Max: 3}, Batch: &WorkerBatch{Size: size},
		}}
		Default(w)
		require.Equal(t, want, w.Spec.Scale.TargetDepth)
	}
}

// TestQueueOfAValidWorker checks that ParseQueue accepts the configuration of every valid worker.
func TestQueueOfAValidWorker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &Worker{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
		s := &w.Spec
		s.Image = "a"
		s.Concurrency, s.QueueLimit = rapid.Int32Range(-1, 1001).Draw(t, "concurrency"), rapid.Int32Range(-1, 100_001).Draw(t,
			"queue")
		s.TimeoutSeconds, s.QueueSeconds = rapid.Int32Range(-1, 3601).Draw(t, "timeout"), rapid.Int32Range(-1, 86401).Draw(t,
			"queueSeconds")
		s.Mode = rapid.SampledFrom([]Mode{"", ModePoll, ModePush}).Draw(t, "mode")
		if s.Mode == ModePush {
			s.Push = &WorkerPush{
				Port: rapid.Int32Range(-1, 65536).Draw(t, "port"),
				Path: rapid.SampledFrom([]string{"", "/", "/a b", "/a?b", "a"}).Draw(t, "path"),
			}
		}
		s.Delivery.Promise = rapid.SampledFrom([]Promise{"", AtMostOnce, AtLeastOnce}).Draw(t, "promise")
		s.Delivery.DeadLetter = rapid.SampledFrom([]string{"", "x", "X", "w"}).Draw(t, "dead")
		if rapid.Bool().Draw(t, "batch") {
			s.Batch = &WorkerBatch{
				Size: rapid.Int32Range(-1, 1001).Draw(t, "size"), WindowSeconds: rapid.Int32Range(-1, 301).Draw(t, "window"),
			}
		}
		Default(w)
		if len(Validate(w)) > 0 {
			return
		}
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationQueue: QueueOf(w).Annotation()}},
		}
		q, err := ParseQueue(p)
		require.NoError(t, err)
		require.Equal(t, s.Concurrency, q.Concurrency)
		require.Equal(t, s.Batch, q.Batch)
		require.Equal(t, time.Duration(s.TimeoutSeconds)*time.Second, q.Timeout())
	})
}

func TestParseQueueRefuses(t *testing.T) {
	pod := func(text string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationQueue: text}}}
	}
	q, err := ParseQueue(&corev1.Pod{})
	require.NoError(t, err)
	require.Nil(t, q)
	for _, text := range []string{
		"", "x", `{"unknown": 1}`, `{"concurrency": 1001}`, `{"limit": -1}`, `{"mode": "x"}`, `{"worker": "../x"}`,
		`{"path": "x"}`, `{"batch": {"size": 1001}}`, `{"batch": {"windowSeconds": -1}}`, `{"path": "` + strings.Repeat("a", 5000) + `"}`,
	} {
		_, err := ParseQueue(pod(text))
		require.Error(t, err, text)
	}
	host := pod("{}")
	host.Spec.HostNetwork = true
	_, err = ParseQueue(host)
	require.Error(t, err, "its network namespace is the node's")
}
