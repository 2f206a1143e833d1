package testcluster_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func settings(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"a": "b"},
	}
}

func TestClustersAreSeparate(t *testing.T) {
	var dirs sync.Map
	t.Run("group", func(t *testing.T) {
		for i := range 4 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				c := testcluster.New(t, testcluster.Config{})
				t.Logf("started after %s", time.Since(began))
				dirs.Store(c.Kubeconfig(), true)
				api, err := kubernetes.NewForConfig(c.REST())
				require.NoError(t, err)
				_, err = api.CoreV1().ConfigMaps("default").Create(t.Context(), settings("mine"), metav1.CreateOptions{})
				require.NoError(t, err, "another cluster has the object")
				// The in-process client reads an object written over HTTPS.
				var read corev1.ConfigMap
				require.NoError(t, c.Client().Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "mine"}, &read))
				require.Equal(t, "b", read.Data["a"])
			})
		}
	})
	dirs.Range(func(kubeconfig, _ any) bool {
		require.NoFileExists(t, kubeconfig.(string))
		return true
	})
}

func TestClientsObjectsAreTheCallers(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{}).Client()
	require.NoError(t, c.Create(t.Context(), settings("one")))
	w, err := c.Watch(t.Context(), &corev1.ConfigMapList{}, ctrl.InNamespace("default"))
	require.NoError(t, err)
	defer w.Stop()
	key := ctrl.ObjectKey{Namespace: "default", Name: "one"}
	var one corev1.ConfigMap
	require.NoError(t, c.Get(t.Context(), key, &one))
	one.Data["a"] = "spoilt"
	var list corev1.ConfigMapList
	require.NoError(t, c.List(t.Context(), &list, ctrl.InNamespace("default")))
	for i := range list.Items {
		list.Items[i].Data["a"] = "spoilt"
	}
	for e := range w.ResultChan() {
		if seen := e.Object.(*corev1.ConfigMap); seen.Name == "one" {
			seen.Data["a"] = "spoilt"
			break
		}
	}
	require.NoError(t, c.Get(t.Context(), key, &one))
	require.Equal(t, "b", one.Data["a"])
}

func TestUsersHaveTheirOwnRights(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{})
	cfg, err := c.As("alice", "sailors")
	require.NoError(t, err)
	api, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	_, err = api.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `User "alice" cannot list resource "secrets"`)
}

func TestReconcilersRunDeploymentsOnFakeNodes(t *testing.T) {
	t.Parallel()
	began := time.Now()
	cluster := testcluster.New(t, testcluster.Config{Parts: testcluster.Reconcilers, FakeNodes: 2})
	t.Logf("started after %s", time.Since(began))
	c := cluster.Client()
	w, err := c.Watch(t.Context(), &appsv1.DeploymentList{})
	require.NoError(t, err)
	defer w.Stop()
	labels, replicas := map[string]string{"app": "web"}, int32(3)
	require.NoError(t, c.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}))
	for e := range w.ResultChan() {
		if e.Object.(*appsv1.Deployment).Status.AvailableReplicas == replicas {
			return
		}
	}
	t.Fatal("the watch ended before the deployment was available")
}

func TestOptionsAreHonoured(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{
		Options: func(o *config.Config) { o.ServiceCIDR = "10.99.0.0/24" },
	}).Client()
	var service corev1.Service
	require.NoError(t, c.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "kubernetes"}, &service))
	require.Equal(t, "10.99.0.1", service.Spec.ClusterIP)
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	testcluster.New(t, testcluster.Config{})
	for want, c := range map[string]testcluster.Config{
		"fake nodes need Reconcilers": {FakeNodes: 1},
		"must be from 0 to 1000":      {Parts: testcluster.Reconcilers, FakeNodes: 1001},
		"images need Pods":            {Images: []string{"x.tar"}},
		"there are no parts 7":        {Parts: 7},
		"log-level":                   {Options: func(o *config.Config) { o.LogLevel = "loud" }},
		"different allow-privileged":  {Options: func(o *config.Config) { o.AllowPrivileged = false }},
	} {
		_, err := testcluster.Start(c)
		require.ErrorContains(t, err, want)
	}
}

// BenchmarkIdle reports the memory in MiB that this process uses for an idle cluster.
func BenchmarkIdle(b *testing.B) {
	used := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapInuse+m.StackInuse) / (1 << 20)
	}
	for b.Loop() {
		first := testcluster.New(b, testcluster.Config{}) // the process's one-time allocations
		before := used()
		const count = 10
		for range count {
			testcluster.New(b, testcluster.Config{})
		}
		b.ReportMetric((used()-before)/count, "MiB/cluster")
		require.NoError(b, first.Stop())
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		c, err := testcluster.Start(testcluster.Config{})
		require.NoError(b, err)
		b.StopTimer()
		require.NoError(b, c.Stop())
		b.StartTimer()
	}
}
