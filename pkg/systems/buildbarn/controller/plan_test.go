package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestChildren checks that each kind has exactly the children in the seed's diagram.
func TestChildren(t *testing.T) {
	for kind, want := range map[string]map[string]int{
		"scheduler": {"ConfigMap": 1, "Deployment": 1, "Service": 1, "Ingress": 1},
		"worker":    {"ConfigMap": 1, "Deployment": 1},
		"storage":   {"ConfigMap": 1, "StatefulSet": 1, "Service": 1},
		"frontend":  {"ConfigMap": 1, "Deployment": 1, "Service": 1},
		"browser":   {"ConfigMap": 1, "Deployment": 1, "Service": 1, "Ingress": 1},
	} {
		w := newWorld(kind)
		before := w.Part.DeepCopyObject()
		Plan(w.checked(), now)
		require.Equal(t, before, w.Part, "Plan changed what it was given")
		require.Equal(t, want, w.settle(t), kind)
		require.Equal(t, buildbarn.Ready, w.Part.Observed().State, "%s: %+v", kind, w.Part.Observed())
		for _, o := range []client.Object{w.Copies[0], child(w)} {
			require.True(t, metav1.IsControlledBy(o, w.Part))
		}
	}
}

func TestDrawn(t *testing.T) {
	w := newWorld("scheduler")
	w.settle(t)
	require.Equal(t, []string{"8982 client-grpc", "8983 worker-grpc", "7982 http"}, ports(w.Service))
	require.Equal(t, corev1.ServiceTypeClusterIP, w.Service.Spec.Type)
	require.Equal(t, "bb-scheduler.ns", w.Ingress.Spec.Rules[0].Host)
	require.Equal(t, []string{"/config/scheduler.jsonnet"}, w.Deployment.Spec.Template.Spec.Containers[0].Args)

	w = newWorld("worker")
	w.settle(t)
	pod := w.Deployment.Spec.Template.Spec
	require.Equal(t, []string{"bb-runner-installer", "volume-init"},
		[]string{pod.InitContainers[0].Name, pod.InitContainers[1].Name})
	require.Equal(t, []string{"worker", "runner"}, []string{pod.Containers[0].Name, pod.Containers[1].Name})
	require.Equal(t, []string{"NODE_NAME", "POD_NAME"},
		[]string{pod.Containers[0].Env[0].Name, pod.Containers[0].Env[1].Name})
	require.EqualValues(t, 65534, *pod.Containers[1].SecurityContext.RunAsUser)
	require.Equal(t, []string{"configs", "worker", "empty"}, mounted(pod.Containers[1]))
	require.Equal(t, []string{"configs", "worker"}, mounted(pod.Containers[0]))
	require.Equal(t, w.Copies[0].Name, pod.Volumes[0].ConfigMap.Name)
	require.Len(t, w.Copies[0].Data, 2, "the other parts' files are not its own")

	w = newWorld("storage")
	w.settle(t)
	require.Equal(t, []string{"8981 grpc"}, ports(w.Service))
	require.Equal(t, corev1.ClusterIPNone, w.Service.Spec.ClusterIP)
	require.Equal(t, "volume-init", w.StatefulSet.Spec.Template.Spec.InitContainers[0].Name)
	claims := w.StatefulSet.Spec.VolumeClaimTemplates
	require.Equal(t, "cas 33Gi ac 1Gi",
		fmt.Sprint(claims[0].Name, " ", claims[0].Spec.Resources.Requests.Storage(), " ", claims[1].Name, " ",
			claims[1].Spec.Resources.Requests.Storage()))

	w = newWorld("frontend")
	w.settle(t)
	require.Equal(t, []string{"8980 grpc"}, ports(w.Service))
	require.Equal(t, corev1.ServiceTypeLoadBalancer, w.Service.Spec.Type)

	w = newWorld("browser")
	w.settle(t)
	require.Equal(t, []string{"7984 http"}, ports(w.Service))
	require.Equal(t, "bb-browser.ns", w.Ingress.Spec.Rules[0].Host)
	no := false
	w.Part.(*buildbarn.BuildbarnBrowser).Spec.Ingress = &no
	w.settle(t)
	require.Nil(t, w.Ingress)
}

// TestOneUpdate checks that a change of one field is one update of the workload.
func TestOneUpdate(t *testing.T) {
	three := int32(3)
	for name, change := range map[string]func(*buildbarn.PodSpec){
		"image":    func(s *buildbarn.PodSpec) { s.Image = "other" },
		"replicas": func(s *buildbarn.PodSpec) { s.Replicas = &three },
		"resources": func(s *buildbarn.PodSpec) {
			s.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1")}
		},
		"selector":    func(s *buildbarn.PodSpec) { s.NodeSelector = map[string]string{"a": "b"} },
		"tolerations": func(s *buildbarn.PodSpec) { s.Tolerations = []corev1.Toleration{{Key: "a"}} },
		"secrets":     func(s *buildbarn.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}} },
		"pull policy": func(s *buildbarn.PodSpec) { s.ImagePullPolicy = corev1.PullAlways },
	} {
		for _, kind := range components {
			w := newWorld(kind)
			w.settle(t)
			change(w.Part.Pods())
			require.Equal(t, map[string]int{kindName(child(w)): 1}, w.settle(t), "%s of %s", name, kind)
			*w.Part.Pods() = buildbarn.PodSpec{}
			require.Equal(t, map[string]int{kindName(child(w)): 1}, w.settle(t), "%s of %s set back", name, kind)
		}
	}
}

// TestConverges checks that after any change or loss a few plans suffice until the part is ready and no write is left.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(rapid.SampledFrom(components).Draw(r, "kind"))
		for range rapid.IntRange(1, 8).Draw(r, "steps") {
			switch rapid.IntRange(0, 7).Draw(r, "step") {
			case 0:
				n := rapid.Int32Range(0, 5).Draw(r, "replicas")
				w.Part.Pods().Replicas = &n
			case 1:
				w.Part.Pods().Image = rapid.StringMatching("[a-z]{1,5}").Draw(r, "image")
			case 2:
				w.Deployment, w.StatefulSet = nil, nil
			case 3:
				w.Service, w.Ingress = nil, nil
			case 4:
				w.Copies = nil
			case 5:
				for name := range w.Source.Data {
					w.Source.Data[name] = fmt.Sprintf("{ x: %d }", rapid.IntRange(0, 9).Draw(r, "x"))
				}
			case 6:
				if w.Deployment != nil {
					w.Deployment.Spec.Template.Spec.HostNetwork, w.Deployment.Spec.Template.Spec.Containers[0].Image = true, "edited"
				}
			case 7:
				if w.Service != nil {
					w.Service.Spec.Ports, w.Service.Spec.Selector = nil, map[string]string{"by": "hand"}
				}
			}
			w.settle(r)
		}
		require.Equal(r, buildbarn.Ready, w.Part.Observed().State)
		require.Len(r, w.Copies, 1, "old configurations are deleted")
	})
}

// TestUncheckedConfig checks that the rest of the part is reconciled while the configuration cannot be checked, and
// that the check is retried.
func TestUncheckedConfig(t *testing.T) {
	w := newWorld("scheduler")
	w.settle(t)
	good := w.Deployment.Spec.Template.Annotations[buildbarn.AnnotationConfig]
	o := w.Observed
	o.Unchecked, o.Service = "the configuration could not be checked: no memory", nil
	a := Plan(o, now)
	require.NotZero(t, a.Again)
	require.Len(t, a.Create, 1, "its Service is made again")
	require.Empty(t, a.Update, "the pods stay as they are")
	require.Equal(t, good, a.Status.ConfigHash)
	w.apply(a)
	require.Equal(t, "NotChecked", conditionOf(w.Part, buildbarn.ConditionConfigValid).Reason)
	require.Contains(t, conditionOf(w.Part, buildbarn.ConditionConfigValid).Message,
		"no memory; the pods keep the last valid one")
}

// TestBadConfig checks that pods never get an invalid configuration and keep the last valid one.
func TestBadConfig(t *testing.T) {
	w := newWorld("scheduler")
	w.Source = nil
	a := Plan(w.checked(), now)
	w.apply(a)
	require.Nil(t, w.Deployment)
	require.Equal(t, buildbarn.NotFound, w.Part.Observed().State)
	require.Equal(t, "ConfigMissing", conditionOf(w.Part, buildbarn.ConditionConfigValid).Reason)
	require.Contains(t, a.Events, Event{
		corev1.EventTypeWarning, "ConfigMissing", conditionOf(w.Part, buildbarn.ConditionConfigValid).Message,
	})
	w.Source = files()
	w.settle(t)
	good := w.Deployment.Spec.Template.Annotations[buildbarn.AnnotationConfig]
	for _, bad := range []*corev1.ConfigMap{nil, {Data: map[string]string{"scheduler.jsonnet": "{"}}} {
		w.Source = bad
		require.Empty(t, w.settle(t), "nothing is written for a bad configuration")
		require.Equal(t, good, w.Deployment.Spec.Template.Annotations[buildbarn.AnnotationConfig])
		require.Equal(t, buildbarn.NotReady, w.Part.Observed().State)
		require.Contains(t, conditionOf(w.Part, buildbarn.ConditionReady).Message, "the pods keep the last valid one")
		// A lost child is created with the last valid configuration.
		w.Deployment = nil
		require.Equal(t, map[string]int{"Deployment": 1}, w.settle(t))
		require.Equal(t, good, w.Deployment.Spec.Template.Annotations[buildbarn.AnnotationConfig])
	}
	w.Source = files()
	w.Source.Data["common.libsonnet"] = "{ changed: 1 }"
	require.Equal(t, map[string]int{"Deployment": 1, "ConfigMap": 2}, w.settle(t), "one made, one deleted")
	require.NotEqual(t, good, w.Deployment.Spec.Template.Annotations[buildbarn.AnnotationConfig])
	w.Source.Data["storage.jsonnet"] = "{ changed: 1 }"
	require.Empty(t, w.settle(t), "another part's file does not matter")
}

func TestForeignChildrenAreLeftAlone(t *testing.T) {
	w := newWorld("scheduler")
	w.Service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "ns"}}
	w.settle(t)
	require.Empty(t, w.Service.Spec.Ports)
	require.Equal(t, "NameTaken", conditionOf(w.Part, buildbarn.ConditionReady).Reason)
	w.Service = nil
	w.settle(t)
	require.Equal(t, buildbarn.Ready, w.Part.Observed().State)
}

// TestHosts checks that the older of two Ingresses gets the host, and the other one when the older is gone.
func TestHosts(t *testing.T) {
	w := newWorld("browser")
	older := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "other", CreationTimestamp: metav1.NewTime(now)},
	}
	w.Rivals = []*networkingv1.Ingress{older}
	w.settle(t)
	require.Nil(t, w.Ingress)
	require.Equal(t, "HostTaken", conditionOf(w.Part, buildbarn.ConditionReady).Reason)
	w.Rivals = nil
	w.settle(t)
	require.NotNil(t, w.Ingress)
	w.Ingress.CreationTimestamp = metav1.NewTime(now.Add(time.Second))
	w.Rivals = []*networkingv1.Ingress{older}
	w.settle(t)
	require.Nil(t, w.Ingress, "both were made at once: the younger one goes")
	younger := older.DeepCopy()
	younger.CreationTimestamp = metav1.NewTime(now.Add(time.Hour))
	w.Rivals = nil
	w.settle(t)
	w.Rivals = []*networkingv1.Ingress{younger}
	require.Empty(t, w.settle(t))
	require.Equal(t, buildbarn.Ready, w.Part.Observed().State)
}

func TestClaimsAndShards(t *testing.T) {
	w := newWorld("storage")
	w.settle(t)
	s := w.Part.(*buildbarn.BuildbarnStorage)
	small := resource.MustParse("1Gi")
	s.Spec.CASSize = &small
	require.Empty(t, w.settle(t))
	require.Equal(t, "ClaimShrunk", conditionOf(w.Part, buildbarn.ConditionReady).Reason)
	w.Part.(*buildbarn.BuildbarnStorage).Spec.CASSize = nil
	w.settle(t)
	require.Equal(t, buildbarn.Ready, w.Part.Observed().State)

	three := int32(3)
	w.Part.Pods().Replicas = &three
	a := Plan(w.checked(), now)
	require.Contains(t, a.Events, Event{
		corev1.EventTypeWarning, "Resharding",
		"the number of storage pods changed from 2 to 3: about 33% of the cache is lost and will be " +
			"built again",
	})
	w.settle(t)
	require.Equal(t, "Resharded", conditionOf(w.Part, buildbarn.ConditionSharding).Reason)
	require.Equal(t, buildbarn.Ready, w.Part.Observed().State)
}

func TestInvalidSpec(t *testing.T) {
	w := newWorld("worker")
	w.settle(t)
	minus := int32(-1)
	w.Part.Pods().Replicas = &minus
	require.Empty(t, w.settle(t), "the children stay as they are")
	require.Equal(t, "InvalidSpec", conditionOf(w.Part, buildbarn.ConditionReady).Reason)
	require.Contains(t, conditionOf(w.Part, buildbarn.ConditionReady).Message, "spec.replicas")
}

func TestImage(t *testing.T) {
	w := newWorld("worker")
	w.settle(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: w.Deployment.Spec.Template.Spec}
	for _, reason := range []string{"ErrImagePull", "ImagePullBackOff"} {
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
			{Name: "bb-runner-installer", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}},
		}
		w.Pods = []*corev1.Pod{pod}
		require.Empty(t, w.settle(t))
		require.Equal(t,
			"ImageNotFound: the image "+buildbarn.ImageInstaller+" of container bb-runner-installer cannot be pulled: "+
				"see the events of pod p",
			conditionOf(w.Part, buildbarn.ConditionReady).Reason+": "+conditionOf(w.Part, buildbarn.ConditionReady).Message)
	}
}

// TestDeletion checks that workers are drained first, and that claims are deleted if the policy says so.
func TestDeletion(t *testing.T) {
	w := newWorld("worker")
	w.settle(t)
	at := metav1.NewTime(now)
	w.Part.SetDeletionTimestamp(&at)
	w.Pods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}
	a := Plan(w.checked(), now)
	require.Zero(t, *a.Update[0].(*appsv1.Deployment).Spec.Replicas)
	require.Nil(t, a.Finalizers)
	w.apply(a)
	require.Empty(t, Plan(w.checked(), now).Update)
	w.Pods = nil
	require.Empty(t, Plan(w.checked(), now).Finalizers.GetFinalizers())

	w = newWorld("storage")
	w.settle(t)
	w.Part.SetDeletionTimestamp(&at)
	w.Claims = []*corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "cas-x-0"}}}
	require.Empty(t, Plan(w.checked(), now).Delete)
	w.Part.(*buildbarn.BuildbarnStorage).Spec.ClaimPolicy = buildbarn.ClaimsDelete
	require.Len(t, Plan(w.checked(), now).Delete, 1)
	w.Draining = 1
	require.Nil(t, Plan(w.checked(), now).Finalizers, "workers end their actions first")
	require.Empty(t, Plan(w.checked(), now).Delete)
}

func TestScale(t *testing.T) {
	w := newWorld("worker")
	w.Part.(*buildbarn.BuildbarnWorker).Spec.Scale = &buildbarn.WorkerScale{Max: 5, Scheduler: "s", Concurrency: 2}
	w.QueueError = "no scheduler"
	w.settle(t)
	require.Equal(t, "QueueUnknown", conditionOf(w.Part, buildbarn.ConditionReady).Reason)
	at := func(queued, executing int32, later time.Duration) int32 {
		w.Queue = &metrics.Queue{Queued: queued, Executing: executing}
		w.apply(Plan(w.checked(), now.Add(later)))
		return *w.Deployment.Spec.Replicas
	}
	require.EqualValues(t, 0, at(0, 0, 0))
	require.EqualValues(t, 3, at(4, 1, time.Second))
	require.EqualValues(t, 5, at(maxCount, maxCount, 2*time.Second), "not above the range")
	require.EqualValues(t, 5, at(1, 0, 3*time.Second), "not at once")
	require.EqualValues(t, 1, at(1, 0, 64*time.Second))
	require.EqualValues(t, 1, at(0, 0, 65*time.Second))
	require.EqualValues(t, 0, at(0, 0, 130*time.Second))
	w.Queue, w.QueueError = nil, "gone"
	w.apply(Plan(w.checked(), now.Add(time.Hour)))
	require.EqualValues(t, 0, *w.Deployment.Spec.Replicas, "what is unknown changes nothing")
}

func configure(o *FarmObserved) {
	for _, p := range o.Parts {
		mains := config.Mains(p.Component(), instance(p))
		p.Observed().ConfigHash = config.Hash(config.Used(o.ConfigMap.Data, mains))
	}
}

// settleFarm applies plans of a farm until no write is left, and returns the number of writes.
func settleFarm(t *testing.T, o *FarmObserved) (writes int) {
	t.Helper()
	for range 4 {
		a := PlanFarm(*o, now)
		n := len(a.Create) + len(a.Update) + len(a.Delete)
		writes += n
		for _, c := range append(a.Create, a.Update...) {
			c = c.DeepCopyObject().(client.Object)
			if p, ok := c.(buildbarn.Part); ok {
				p.Observed().State = buildbarn.Ready
				o.Parts = append(slices.DeleteFunc(o.Parts, func(q buildbarn.Part) bool { return q.GetName() == p.GetName() }), p)
			} else {
				o.ConfigMap = c.(*corev1.ConfigMap)
			}
		}
		for _, d := range a.Delete {
			o.Parts = slices.DeleteFunc(o.Parts, func(q buildbarn.Part) bool { return q.GetName() == d.GetName() })
		}
		configure(o)
		o.Farm = o.Farm.DeepCopy()
		o.Farm.Status = a.Status
		if n == 0 {
			return writes
		}
	}
	require.FailNow(t, "it does not settle")
	return 0
}

func TestFarm(t *testing.T) {
	o := &FarmObserved{
		Farm: &buildbarn.Buildbarn{ObjectMeta: metav1.ObjectMeta{Name: "farm", Namespace: "ns", UID: types.UID("f")}},
	}
	require.Equal(t, 5, settleFarm(t, o),
		"a ConfigMap, storage, scheduler, frontend and workers; no browser without its image")
	require.Equal(t, buildbarn.Ready, o.Farm.Status.State)
	require.Zero(t, settleFarm(t, o))
	o.Parts[0].Observed().ConfigHash = "old"
	require.Equal(t, buildbarn.NotReady, PlanFarm(*o, now).Status.State,
		"a part that has not seen its configuration is not ready, whatever it says")
	o.Farm.Spec.Images.Worker = "other"
	require.Equal(t, 1, settleFarm(t, o))
	o.Farm.Spec.Workers = []buildbarn.FarmWorkers{
		{Name: "a"}, {Name: "b", InstanceNamePrefix: "b", Scale: &buildbarn.FarmScale{Max: 3}},
	}
	require.Equal(t, 4, settleFarm(t, o), "the configuration, two pools, and the pool that went")
	o.Parts = nil
	require.Equal(t, 5, settleFarm(t, o))
	o.Farm.Spec.Workers[1].InstanceNamePrefix = ""
	settleFarm(t, o)
	require.Equal(t, "InvalidSpec", o.Farm.Status.Conditions[1].Reason, "%+v", o.Farm.Status.Conditions)
}
