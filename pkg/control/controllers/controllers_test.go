package controllers_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func deployment(name, image string, replicas int32) *appsv1.Deployment {
	l := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: l},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{
					{Name: "c", Image: image, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}},
				},
			}},
		},
	}
}

// done reports whether kubectl rollout status would return.
func done(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == *d.Spec.Replicas &&
		s.Replicas == s.UpdatedReplicas && s.AvailableReplicas == s.UpdatedReplicas
}

func TestDeploymentRollsOutAndServes(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	d := deployment("web", "one", 3)
	c.Make(d, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{
		ClusterIP: "None", Selector: map[string]string{"app": "web"},
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}},
	}})
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
	slice := controlplane.Until(c, &discoveryv1.EndpointSliceList{}, "default", "",
		func(s *discoveryv1.EndpointSlice) bool {
			return len(s.Endpoints) == 3
		})
	require.EqualValues(t, 8080, *slice.Ports[0].Port)
	controlplane.Until(c, &corev1.EndpointsList{}, "default", "web", func(e *corev1.Endpoints) bool {
		return len(e.Subsets) == 1 && len(e.Subsets[0].Addresses) == 3
	})

	d = controlplane.Edit(c, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "two" })
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", func(is *appsv1.Deployment) bool {
		return is.Generation >= d.Generation && done(is)
	})
	var sets appsv1.ReplicaSetList
	require.NoError(t, c.List(c.Ctx, &sets, ctrl.InNamespace("default")))
	require.Len(t, sets.Items, 2)
	sizes := map[string]int32{}
	for _, rs := range sets.Items {
		sizes[rs.Annotations["deployment.kubernetes.io/revision"]] = *rs.Spec.Replicas
	}
	require.Equal(t, map[string]int32{"1": 0, "2": 3}, sizes)

	require.NoError(t, c.Delete(c.Ctx, d, ctrl.PropagationPolicy(metav1.DeletePropagationForeground)))
	c.Gone(d)
	require.NoError(t, c.List(c.Ctx, &sets, ctrl.InNamespace("default")))
	require.Empty(t, sets.Items)
	require.NoError(t, c.Delete(c.Ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}))
	c.Gone(slice.DeepCopy())
	c.Gone(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
}

func TestRecreateStopsTheOldFirst(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	d := deployment("web", "one", 2)
	d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	c.Make(d)
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
	d = controlplane.Edit(c, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "two" })
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", func(is *appsv1.Deployment) bool {
		return is.Generation >= d.Generation && done(is)
	})
	var pods corev1.PodList
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
	for _, p := range pods.Items {
		require.Equal(t, "two", p.Spec.Containers[0].Image)
	}
}

func TestNamespaceIsFurnishedAndEmptied(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	n := c.Node("a")
	controlplane.Until(c, &corev1.NodeList{}, "", "a", func(n *corev1.Node) bool {
		return n.Spec.PodCIDR == "10.42.0.0/24"
	})
	_ = n
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	c.Make(ns)
	controlplane.Until(c, &corev1.ServiceAccountList{}, "shop", "default", func(*corev1.ServiceAccount) bool {
		return true
	})
	controlplane.Until(c, &corev1.ConfigMapList{}, "shop", "kube-root-ca.crt", func(m *corev1.ConfigMap) bool {
		return m.Data["ca.crt"] == "pem"
	})
	c.RootCA.Set([]byte("new and old"))
	controlplane.Until(c, &corev1.ConfigMapList{}, "shop", "kube-root-ca.crt", func(m *corev1.ConfigMap) bool {
		return m.Data["ca.crt"] == "new and old"
	})
	d := deployment("web", "one", 3)
	d.Namespace = "shop"
	c.Make(d, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "s"}})
	controlplane.Until(c, &appsv1.DeploymentList{}, "shop", "web", done)
	held := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "held", Finalizers: []string{"example.com/hold"}},
		Spec:       d.Spec.Template.Spec,
	}
	c.Make(held)
	require.NoError(t, c.Delete(c.Ctx, ns))
	controlplane.Until(c, &corev1.NamespaceList{}, "", "shop", func(ns *corev1.Namespace) bool {
		return slices.ContainsFunc(ns.Status.Conditions, func(s corev1.NamespaceCondition) bool {
			return s.Type == corev1.NamespaceFinalizersRemaining && s.Status == corev1.ConditionTrue
		})
	})
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "shop", Name: "s"}, &corev1.Secret{}),
		"a secret outlives the pods that may use it")
	require.NoError(t,
		c.Patch(c.Ctx, held, ctrl.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	c.Gone(ns)
	var pods corev1.PodList
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("shop")))
	require.Empty(t, pods.Items)
}

// A node for which no pod CIDR is left gets an event. It gets the CIDR of the next node that is deleted.
func TestNodeNetworksRunOut(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelWarn, CIDR: "10.42.8.0/23"})
	has := func(n *corev1.Node) bool { return n.Spec.PodCIDR != "" }
	first := c.Node("first")
	controlplane.Until(c, &corev1.NodeList{}, "", "first", has)
	c.Node("second")
	controlplane.Until(c, &corev1.NodeList{}, "", "second", has)
	c.Node("third")
	controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
		return e.Reason == "CIDRNotAvailable" && e.InvolvedObject.Name == "third" &&
			strings.Contains(e.Message, "--cluster-cidr")
	})
	require.NoError(t, c.Delete(c.Ctx, first))
	third := controlplane.Until(c, &corev1.NodeList{}, "", "third", has)
	require.Equal(t, "10.42.8.0/24", third.Spec.PodCIDR)
}

func TestReplicationControllers(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	l := map[string]string{"app": "old"}
	n := int32(3)
	template := deployment("old", "one", 3).Spec.Template
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &n, Selector: l, Template: &template},
	}
	alone := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "alone", Labels: l}, Spec: template.Spec,
	}
	c.Make(alone, rc)
	controlplane.Until(c, &corev1.ReplicationControllerList{}, "default", "old",
		func(rc *corev1.ReplicationController) bool {
			return rc.Status.AvailableReplicas == 3 && rc.Status.FullyLabeledReplicas == 3 &&
				rc.Status.ObservedGeneration == rc.Generation
		})
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(alone), alone))
	require.Equal(t, "ReplicationController", alone.OwnerReferences[0].Kind, "adopted")
	n = 1
	require.NoError(t,
		c.SubResource("scale").Update(c.Ctx, rc,
			ctrl.WithSubResourceBody(&autoscalingv1.Scale{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"}, Spec: autoscalingv1.ScaleSpec{Replicas: n},
			})))
	controlplane.Until(c, &corev1.ReplicationControllerList{}, "default", "old",
		func(rc *corev1.ReplicationController) bool {
			return rc.Status.Replicas == 1
		})
}

func TestOwnersGo(t *testing.T) {
	for name, policy := range map[string]metav1.DeletionPropagation{
		"background": metav1.DeletePropagationBackground, "foreground": metav1.DeletePropagationForeground,
		"orphan": metav1.DeletePropagationOrphan,
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
			c.Node("a")
			d := deployment("web", "one", 3)
			c.Make(d)
			controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
			var sets appsv1.ReplicaSetList
			var pods corev1.PodList
			count := func() (int, int) {
				require.NoError(t, c.List(c.Ctx, &sets, ctrl.InNamespace("default")))
				require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
				return len(sets.Items), len(pods.Items)
			}
			s, p := count()
			require.Equal(t, []int{1, 3}, []int{s, p})
			set, old := sets.Items[0], pods.Items
			require.NoError(t, c.Delete(c.Ctx, d, ctrl.PropagationPolicy(policy)))
			c.Gone(d)
			switch policy {
			case metav1.DeletePropagationForeground:
				s, p = count()
				require.Zero(t, s+p)
			case metav1.DeletePropagationBackground: // the pods are deleted after their owner, perhaps at once
				c.Gone(&appsv1.ReplicaSet{ObjectMeta: set.ObjectMeta})
				for _, p := range old {
					c.Gone(&corev1.Pod{ObjectMeta: p.ObjectMeta})
				}
			default:
				s, p = count()
				require.Equal(t, []int{1, 3}, []int{s, p})
				require.Empty(t, sets.Items[0].OwnerReferences)
				require.NotEmpty(t, pods.Items[0].OwnerReferences)
				again := deployment("web", "one", 3) // adopts the orphans
				c.Make(again)
				controlplane.Until(c, &appsv1.ReplicaSetList{}, "default", sets.Items[0].Name, func(rs *appsv1.ReplicaSet) bool {
					return len(rs.OwnerReferences) == 1 && rs.OwnerReferences[0].UID == again.UID
				})
				controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
				s, p = count()
				require.Equal(t, []int{1, 3}, []int{s, p})
			}
		})
	}
}

func TestEndpointsWrittenByHandAreMirrored(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelWarn})
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"},
		Spec:       corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 5432}}},
	}
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}, Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Port: 5432}},
		}},
	}
	c.Make(svc, e)
	slice := controlplane.Until(c, &discoveryv1.EndpointSliceList{}, "default", "",
		func(s *discoveryv1.EndpointSlice) bool {
			return len(s.Endpoints) == 1
		})
	require.Equal(t, "192.0.2.1", slice.Endpoints[0].Addresses[0])
	require.NoError(t, c.Delete(c.Ctx, e))
	c.Gone(slice.DeepCopy())
}

// TestOverHTTP runs the reconcilers as in a separate process: each has its own client and its own rights.
func TestOverHTTP(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: true})
	c.Node("a")
	d := deployment("web", "one", 3)
	c.Make(d, &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "t"},
		Spec:       tasks.TaskSpec{Image: "x", Args: []string{"exit", "0"}},
	})
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
	controlplane.Until(c, &tasks.TaskList{}, "default", "t", func(t *tasks.Task) bool {
		return t.Status.Phase == tasks.TaskCompleted
	})
	var pods corev1.PodList
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default"), ctrl.MatchingLabels{"app": "web"}))
	require.Len(t, pods.Items, 3, "no more than were asked for, though caches lag")
	require.NoError(t, c.Delete(c.Ctx, d, ctrl.PropagationPolicy(metav1.DeletePropagationForeground)))
	c.Gone(d)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	c.Make(ns)
	controlplane.Until(c, &corev1.ServiceAccountList{}, "shop", "default", func(*corev1.ServiceAccount) bool {
		return true
	})
	require.NoError(t, c.Delete(c.Ctx, ns))
	c.Gone(ns)
}

// BenchmarkCreate measures how many pods a second 16 writers create and the scheduler binds while all reconcilers run.
func BenchmarkCreate(b *testing.B) {
	c := start(b, controlplane.Options{Log: slog.LevelWarn})
	for i := range 200 {
		c.Node(fmt.Sprint("n", i))
	}
	controlplane.Until(c, &corev1.ServiceAccountList{}, "default", "default", func(*corev1.ServiceAccount) bool {
		return true
	})
	n := 0
	for b.Loop() {
		n++
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for i := w; i < 2000; i += 16 {
					p := &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{
							Namespace: "default",
							Name:      fmt.Sprintf("p%d-%d", n, i),
							Labels:    map[string]string{"app": "x"},
						}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}},
					}
					if err := c.Create(c.Ctx, p); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(2000*n)/b.Elapsed().Seconds(), "pods/s")
}
