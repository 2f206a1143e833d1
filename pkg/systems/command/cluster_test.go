package command

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestConnect(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	_, err := Connector{}.Connect("", "")
	require.ErrorIs(t, err, ErrNoCluster)
	require.ErrorContains(t, err, "none names none: unset it to use the cluster of this machine")

	file := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "shop"}}]}`), 0o600))
	c, err := Connector{}.Connect(file, "")
	require.NoError(t, err)
	require.Equal(t, "shop", c.Namespace, "the namespace of the context")
	c, err = Connector{}.Connect(file, "other")
	require.NoError(t, err)
	require.Equal(t, "other", c.Namespace)
	require.Equal(t, "https://127.0.0.1:1", c.REST.Host)
	_, err = Connector{}.Connect(filepath.Join(dir, "missing"), "")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestExplainNamespace(t *testing.T) {
	scheme, err := Scheme()
	require.NoError(t, err)
	named := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	c := &Cluster{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(named("default"), named("shop"),
		named("shops"), named("kube-system")).Build()}
	explained := func(namespace string) error {
		return explain(t.Context(), c, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace))
	}
	require.EqualError(t, explained("billing"), "there is no namespace billing: `coracle get namespaces` lists them, "+
		"`coracle create namespace billing` creates it")
	for typo, name := range map[string]string{
		"shpo": "shop", "shopss": "shops", "defalut": "default", "kube-sytem": "kube-system", "def": "default",
	} {
		require.EqualError(t, explained(typo), "there is no namespace "+typo+": did you mean "+name+"? "+
			"`coracle get namespaces` lists all")
	}
	other := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "shop")
	require.Equal(t, error(other), explain(t.Context(), c, other))
	require.NoError(t, explain(t.Context(), c, nil))

	c.Namespace = "shop"
	require.NoError(t, c.CheckNamespace(t.Context()))
	c.Namespace = "shpo"
	require.ErrorContains(t, c.CheckNamespace(t.Context()), "did you mean shop?")
	c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{
		Get: func(context.Context, ctrl.WithWatch, ctrl.ObjectKey, ctrl.Object, ...ctrl.GetOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "shpo", nil)
		},
	})
	require.NoError(t, c.CheckNamespace(t.Context()), "this user may not know it")
}

// TestWorkloads checks that commands can read the workloads of a system's parts.
func TestWorkloads(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	file := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "`+server.URL+`"}}],
"contexts": [{"name": "c", "context": {"cluster": "c"}}]}`), 0o600))
	c, err := Connector{}.Connect(file, "")
	require.NoError(t, err)
	for _, workload := range []ctrl.Object{&appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.ReplicaSet{}} {
		err := c.Client.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "missing"}, workload)
		require.True(t, apierrors.IsNotFound(err), "%T: %v", workload, err)
	}
}

func TestUseCluster(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBECACHEDIR", "")
	UseCluster(dir)
	require.Empty(t, os.Getenv("KUBECONFIG"), "there is no cluster in the directory")
	require.NoError(t, os.WriteFile(filepath.Join(dir, Kubeconfig), nil, 0o600))
	UseCluster(dir)
	require.Equal(t, filepath.Join(dir, Kubeconfig), os.Getenv("KUBECONFIG"))
	require.Equal(t, filepath.Join(dir, "kubectl-cache"), os.Getenv("KUBECACHEDIR"))
	t.Setenv("KUBECONFIG", "/mine")
	UseCluster(dir)
	require.Equal(t, "/mine", os.Getenv("KUBECONFIG"), "the user's choice stands")
}

// TestCheck checks that a command on this machine's stopped cluster says how to start it, and that other clusters are
// not checked.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("KUBECACHEDIR", dir)
	t.Setenv("CORACLE_DATA_DIR", dir)
	// client-go reads HOME when the program starts: without this the test would find the user's cluster.
	was := clientcmd.RecommendedHomeFile
	clientcmd.RecommendedHomeFile = filepath.Join(dir, "none")
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = was })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	file := filepath.Join(dir, Kubeconfig)
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "https://` +
		listener.Addr().String() + `"}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`
	t.Setenv("KUBECONFIG", "")
	_, err = Connector{}.Connect("", "")
	require.ErrorIs(t, err, ErrNoCluster)
	require.ErrorIs(t, Check(&rest.Config{Host: "http://localhost:8080"}), ErrNoCluster)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	_, err = Connector{}.Connect("", "")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	own := &rest.Config{Host: "https://" + listener.Addr().String()}
	require.ErrorIs(t, Check(own), errStopped)
	other := filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(other, []byte(text), 0o600))
	for _, path := range []string{"", file, other} {
		_, err = Connector{}.Connect(path, "")
		require.ErrorIs(t, err, errStopped, "the kubeconfig %q leads to this machine's cluster", path)
	}
	require.NoError(t, Check(&rest.Config{Host: "https://127.0.0.1:1"}), "not this machine's cluster")
}
