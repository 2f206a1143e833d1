package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newWorker(change func(*workers.WorkerSpec)) *workers.Worker {
	w := &workers.Worker{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w", UID: "u"}, Spec: workers.WorkerSpec{Image: "i"},
	}
	if change != nil {
		change(&w.Spec)
	}
	workers.Default(w)
	return w
}

func newPod(ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{Status: corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
	}}
}

func TestScale(t *testing.T) {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	long := ago(time.Hour)
	for name, c := range map[string]struct {
		have      int32
		depth     int32
		last, low time.Time
		want      int32
		again     time.Duration
	}{
		"idle":                   {have: 0, last: long, want: 0},
		"first message":          {have: 0, depth: 1, want: 1},
		"a message lately":       {have: 1, last: ago(20 * time.Second), want: 1, again: 56 * time.Second},
		"no message for a while": {have: 1, last: ago(76 * time.Second), want: 0},
		"busy":                   {have: 1, depth: 7, last: now, want: 4},
		"too busy":               {have: 1, depth: 70, last: now, want: 5},
		"less busy":              {have: 4, depth: 2, last: now, want: 4, again: time.Minute},
		"less busy for some time": {
			have: 4, depth: 2, last: now, low: ago(50 * time.Second), want: 4, again: 10 * time.Second,
		},
		"less busy for long": {have: 4, depth: 2, last: now, low: ago(time.Minute), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(func(s *workers.WorkerSpec) { s.Scale = &workers.WorkerScale{Max: 5} })
			w.Status.DesiredReplicas, w.Status.Depth = c.have, c.depth
			if !c.last.IsZero() {
				w.Status.LastMessageTime = &metav1.Time{Time: c.last}
			}
			if !c.low.IsZero() {
				w.Status.LowSince = &metav1.Time{Time: c.low}
			}
			a := Plan(Observed{Worker: w, Pods: []*corev1.Pod{newPod(true)}}, now)
			require.Equal(t, c.want, a.Status.DesiredReplicas)
			require.Equal(t, c.again, a.Again)
		})
	}
}

// TestScaleKeepsItsRange checks that for any queue the number of replicas is within the range, and above zero while
// there are messages.
func TestScaleKeepsItsRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &workers.WorkerScale{Max: rapid.Int32Range(1, 10).Draw(t, "max")}
		r.Min = rapid.Int32Range(0, r.Max).Draw(t, "min")
		w := newWorker(func(s *workers.WorkerSpec) { s.Scale = r })
		at := now
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
			w = w.DeepCopy()
			w.Status.Depth = rapid.Int32Range(0, 100_000).Draw(t, "depth")
			w.Status.InFlight = rapid.Int32Range(0, 2000).Draw(t, "flight")
			a := Plan(Observed{Worker: w}, at)
			require.GreaterOrEqual(t, a.Status.DesiredReplicas, r.Min)
			require.LessOrEqual(t, a.Status.DesiredReplicas, r.Max)
			if a.Status.Depth+a.Status.InFlight > 0 {
				require.Positive(t, a.Status.DesiredReplicas)
			}
			w.Status = a.Status
		}
	})
}

func TestDeadLetterCondition(t *testing.T) {
	w := newWorker(func(s *workers.WorkerSpec) {
		s.Delivery = workers.WorkerDelivery{Promise: workers.AtLeastOnce, DeadLetter: "failed"}
	})
	a := Plan(Observed{Worker: w, NoDeadLetter: true}, now)
	c := meta.FindStatusCondition(a.Status.Conditions, workers.ConditionDeadLetter)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Contains(t, c.Message, "worker failed does not exist")
	w.Status = a.Status
	a = Plan(Observed{Worker: w}, now)
	require.True(t, meta.IsStatusConditionTrue(a.Status.Conditions, workers.ConditionDeadLetter))
	w.Status, w.Spec.Delivery.DeadLetter = a.Status, ""
	require.Nil(t, meta.FindStatusCondition(Plan(Observed{Worker: w}, now).Status.Conditions, workers.ConditionDeadLetter))
}

func TestRepliesCondition(t *testing.T) {
	w := newWorker(func(s *workers.WorkerSpec) { s.Delivery.Replies = "listener" })
	a := Plan(Observed{Worker: w, NoReplies: true}, now)
	c := meta.FindStatusCondition(a.Status.Conditions, workers.ConditionReplies)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Equal(t, "worker listener does not exist: messages whose senders do not wait fail until it does", c.Message)
	w.Status = a.Status
	a = Plan(Observed{Worker: w}, now)
	require.True(t, meta.IsStatusConditionTrue(a.Status.Conditions, workers.ConditionReplies))
}

func TestQueueCondition(t *testing.T) {
	w := newWorker(func(s *workers.WorkerSpec) {
		s.Delivery = workers.WorkerDelivery{Promise: workers.AtLeastOnce, Store: workers.StoreNATS}
	})
	w.Status.QueueFailure = "no servers available"
	c := meta.FindStatusCondition(Plan(Observed{Worker: w}, now).Status.Conditions, workers.ConditionQueue)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Equal(t, "no servers available", c.Message)
	w.Status.QueueFailure = ""
	c = meta.FindStatusCondition(Plan(Observed{Worker: w}, now).Status.Conditions, workers.ConditionQueue)
	require.Equal(t, metav1.ConditionUnknown, c.Status, "no server has opened the stream")
	w.Status.QueueServer = "a"
	require.True(t, meta.IsStatusConditionTrue(Plan(Observed{Worker: w}, now).Status.Conditions, workers.ConditionQueue))
	w.Spec.Delivery.Store = workers.StoreLocal
	require.Nil(t, meta.FindStatusCondition(Plan(Observed{Worker: w}, now).Status.Conditions, workers.ConditionQueue))
}

func TestPlan(t *testing.T) {
	w := newWorker(nil)
	before := w.DeepCopy()
	a := Plan(Observed{Worker: w}, now)
	require.Equal(t, before, w, "Plan changed what it was given")
	require.NotNil(t, a.CreateService)
	require.NotNil(t, a.CreateSet)
	require.EqualValues(t, 1, *a.CreateSet.Spec.Replicas)
	require.Equal(t, "NoReadyPod", a.Status.Conditions[0].Reason)

	set, service := a.CreateSet, a.CreateService
	set.Status.ReadyReplicas = 1
	a = Plan(Observed{
		Worker:  w,
		Sets:    []*appsv1.ReplicaSet{set},
		Service: service,
		Pods:    []*corev1.Pod{newPod(true)},
	}, now)
	require.Nil(t, a.CreateService)
	require.Nil(t, a.CreateSet)
	require.Empty(t, a.ScaleSets)
	require.EqualValues(t, 1, a.Status.ReadyReplicas)
	require.Equal(t, metav1.ConditionTrue, a.Status.Conditions[0].Status)

	changed := newWorker(func(s *workers.WorkerSpec) { s.Image = "j" })
	a = Plan(Observed{Worker: changed, Sets: []*appsv1.ReplicaSet{set}, Service: service}, now)
	require.NotNil(t, a.CreateSet)
	require.NotEqual(t, set.Name, a.CreateSet.Name)
	require.Empty(t, a.DeleteSets, "the old pods stay until the new ones are ready")
	next := a.CreateSet
	a = Plan(Observed{Worker: changed, Sets: []*appsv1.ReplicaSet{set, next}, Service: service}, now)
	require.Empty(t, a.DeleteSets)
	next.Status.ReadyReplicas = 1
	a = Plan(Observed{Worker: changed, Sets: []*appsv1.ReplicaSet{set, next}, Service: service}, now)
	require.Equal(t, []*appsv1.ReplicaSet{set}, a.DeleteSets)

	foreign := service.DeepCopy()
	foreign.OwnerReferences = nil
	a = Plan(Observed{Worker: w, Sets: []*appsv1.ReplicaSet{set}, Service: foreign}, now)
	require.Nil(t, a.UpdateService, "a service of somebody else is left alone")
	require.Equal(t, "ServiceConflict", a.Status.Conditions[0].Reason)
}

func TestTemplate(t *testing.T) {
	w := newWorker(func(s *workers.WorkerSpec) {
		s.Image, s.Function, s.Parameters = "", workers.FunctionEcho, map[string]string{"prefix": "$(HOME)"}
	})
	p := Template(w)
	require.Equal(t, Image, p.Spec.Containers[0].Image)
	_, err := workers.ParseQueue(&corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: p.Spec})
	require.NoError(t, err)
	require.Contains(t, p.Spec.Containers[0].Env, corev1.EnvVar{
		Name: workers.ParametersEnv, Value: `{"prefix":"$$(HOME)"}`,
	})
	require.Equal(t, Set(w, 1).Name, Set(w, 3).Name, "the name does not depend on the number")

	require.NotContains(t, p.Annotations, defaultContainer)
	before := Set(w, 1).Name
	w.Spec.Template = &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b", workers.LabelWorker: "other"}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"disk": "fast"},
			Containers: []corev1.Container{
				{Name: "beside", Image: "i"},
				{Name: workers.ContainerName, VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
			},
		},
	}
	w.Spec.PodLabels = map[string]string{"c": "d"}
	require.NotEqual(t, before, Set(w, 1).Name, "other pods")
	p = Template(w)
	require.Equal(t, map[string]string{"a": "b", "c": "d", workers.LabelWorker: w.Name}, p.Labels)
	require.Equal(t, map[string]string{"disk": "fast"}, p.Spec.NodeSelector)
	require.Len(t, p.Spec.Containers, 2)
	require.Equal(t, Image, p.Spec.Containers[0].Image, "the program is the first container")
	require.Len(t, p.Spec.Containers[0].VolumeMounts, 1)
	require.Equal(t, "beside", p.Spec.Containers[1].Name)
	require.Equal(t, workers.ContainerName, p.Annotations[defaultContainer])
	require.Equal(t, "beside", w.Spec.Template.Spec.Containers[0].Name, "the worker is not changed")
}

// TestWhyPodsWait checks that the condition Ready says why pods are not ready.
func TestWhyPodsWait(t *testing.T) {
	pod := func(name string, status corev1.PodStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status}
	}
	in := func(reason, message string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}}}
	}
	for want, pods := range map[string][]*corev1.Pod{
		"no pod is ready": {pod("a", corev1.PodStatus{ContainerStatuses: in("ContainerCreating", "")})},
		"no pod is ready: pod/b: ErrImagePull: no such image": {
			pod("a", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: in("Error", "")}),
			pod("b", corev1.PodStatus{ContainerStatuses: in("ErrImagePull", "no such image")}),
		},
		"no pod is ready: pod/a: CrashLoopBackOff": {
			pod("a", corev1.PodStatus{
				InitContainerStatuses: in("CrashLoopBackOff", ""), ContainerStatuses: in("PodInitializing", ""),
			}),
		},
		"no pod is ready: pod/a: 0/1 nodes are available": {pod("a", corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"},
		}})},
	} {
		a := Plan(Observed{Worker: newWorker(nil), Pods: pods}, time.Now())
		require.Equal(t, want, a.Status.Conditions[0].Message)
	}
}
