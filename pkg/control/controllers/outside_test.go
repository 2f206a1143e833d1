package controllers_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// free returns an unused address, with a port below the kernel's ephemeral range.
func free(t *testing.T) string {
	t.Helper()
	for range 100 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.N(20000))); err == nil {
			require.NoError(t, l.Close())
			return l.Addr().String()
		}
	}
	t.Fatal("there is no free port")
	return ""
}

// TestOutside: scheduler and controllers run as separate processes of a server that runs neither.
func TestOutside(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: true, Bare: true})
	c.Node("a")
	config := server.Outside{REST: c.REST("admin", user.SystemPrivilegedGroup), LogLevel: "error"}
	begin := func(f func(context.Context, server.Outside) error, o server.Outside) (address string) {
		o.Listen = free(t)
		ctx, cancel := context.WithCancel(c.Ctx)
		ended := make(chan error, 1)
		go func() { ended <- f(ctx, o) }()
		t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
		return o.Listen
	}
	scheduling := begin(server.RunScheduler, config)
	controlling := begin(server.RunControllers, config)
	c.Make(deployment("web", "one", 5))
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
	controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
		return e.Reason == "Scheduled"
	})

	// Discovery finds the kinds: deleting a namespace deletes its objects, and deleting an owner its dependents.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "brief"}}
	c.Make(ns, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "brief", Name: "c"}})
	require.NoError(t, c.Delete(c.Ctx, ns))
	c.Gone(ns)

	for lease, address := range map[string]string{"kube-scheduler": scheduling, "kube-controller-manager": controlling} {
		var l coordinationv1.Lease
		require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "kube-system", Name: lease}, &l))
		require.NotContains(t, *l.Spec.HolderIdentity, "_coracle-", "a server that is alone does not take it")
		for path, want := range map[string]string{
			"/readyz":  "ok",
			"/livez":   "ok",
			"/metrics": `leader_election_master_status{name="` + lease + `"} 1`,
		} {
			answer, err := http.Get("http://" + address + path)
			require.NoError(t, err)
			body, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, http.StatusOK, answer.StatusCode)
			require.Contains(t, string(body), want)
		}
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		health, err := grpc_health_v1.NewHealthClient(conn).Check(c.Ctx, &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, health.Status)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestOutsideOnly: only the named reconcilers run, under a lease of their own. Unknown names are refused.
func TestOutsideOnly(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelWarn, HTTP: true, Bare: true})
	config := server.Outside{
		REST:     c.REST("admin", user.SystemPrivilegedGroup),
		LogLevel: "error",
		Listen:   free(t),
		Only:     []string{"replicaset"},
	}
	wrong := config
	wrong.Only = []string{"replicasets"}
	require.ErrorContains(t, server.RunControllers(c.Ctx, wrong), `there is no reconciler "replicasets" here; there are `)
	ctx, cancel := context.WithCancel(c.Ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.RunControllers(ctx, config) }()
	c.Make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}},
		deployment("web", "one", 1))
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set"}}
	d := deployment("web", "one", 2)
	rs.Spec = appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template}
	c.Make(rs)
	controlplane.Until(c, &appsv1.ReplicaSetList{}, "default", "set", func(r *appsv1.ReplicaSet) bool {
		return r.Status.Replicas == 2
	})
	var web appsv1.Deployment
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "web"}, &web))
	require.Zero(t, web.Status.ObservedGeneration)
	var leases coordinationv1.LeaseList
	require.NoError(t, c.List(c.Ctx, &leases, ctrl.InNamespace("kube-system")))
	require.Len(t, leases.Items, 1)
	require.Contains(t, leases.Items[0].Name, "coracle-controllers-")
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(&leases.Items[0]), &leases.Items[0]))
	require.Empty(t, *leases.Items[0].Spec.HolderIdentity, "it is released at the end")
}
