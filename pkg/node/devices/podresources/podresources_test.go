package podresources

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/coracle-dev/coracle/pkg/node/devices"
	"github.com/coracle-dev/coracle/pkg/node/devices/dra"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed is a set of pods that does not change.
type fixed []*corev1.Pod

func (f fixed) Pods() []*corev1.Pod { return f }

func (f fixed) Find(namespace, name string, _ types.UID) (*corev1.Pod, bool) {
	for _, p := range f {
		if p == nil {
			panic("a bug")
		}
		if p.Namespace == namespace && p.Name == name {
			return p, true
		}
	}
	return nil, false
}

// serve serves the API for pods with the given checkpoints of devices and claims, and returns a connection to it.
func serve(t *testing.T, pods Pods, assigned, claims any) *grpc.ClientConn {
	root, err := os.MkdirTemp("", "res") // paths of sockets must be short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	dir, err := plugins.Open(filepath.Join(root, "k"), "")
	require.NoError(t, err)
	write := func(name string, what any) string {
		data, err := json.Marshal(what)
		require.NoError(t, err)
		path := filepath.Join(root, name)
		require.NoError(t, os.WriteFile(path, data, 0o600))
		return path
	}
	log := slog.New(slog.DiscardHandler)
	d, err := devices.New(devices.Config{
		Dir:    dir,
		File:   write("devices.json", map[string]any{"assigned": assigned}),
		Logger: log,
	})
	require.NoError(t, err)
	c, err := dra.New(dra.Config{Dir: dir, File: write("claims.json", map[string]any{"claims": claims}), Logger: log})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(Config{Dir: dir, Pods: pods, Devices: d, Claims: c, Logger: log}).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir.Root(), "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestAnswers(t *testing.T) {
	always, direct, other := corev1.ContainerRestartPolicyAlways, "direct", "other"
	gpu := pod("gpu", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{
			{Name: "mine", ResourceClaimName: &direct}, {Name: "unused", ResourceClaimName: &other},
		}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "mine", Request: "one"}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "second", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "mine"}}},
		})
	})
	ended := pod("ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	ids := func(list ...string) map[string]any { return map[string]any{"ids": list} }
	conn := serve(t, fixed{gpu, pod("plain", nil), ended},
		map[string]any{
			"uid-gpu": map[string]any{
				"init": map[string]any{"x.com/a": ids("0")},
				"side": map[string]any{"x.com/b": ids("9")},
				"main": map[string]any{"x.com/b": ids("3"), "x.com/a": ids("2", "1")},
			},
		},
		map[string]any{
			"c1": map[string]any{"namespace": "ns", "name": "direct", "pods": []string{"uid-gpu"}, "devices": []any{
				map[string]any{
					"driver":   "d",
					"pool":     "p",
					"name":     "one",
					"requests": []string{"one"},
					"cdi":      []string{"x.com/gpu=1"},
					"share":    "s",
				},
				map[string]any{"driver": "d", "pool": "p", "name": "two", "requests": []string{"two"}}}},
			"c2": map[string]any{"namespace": "ns", "name": "other", "pods": []string{"uid-gpu"}},
			// an earlier pod of the same name
			"c3": map[string]any{"namespace": "ns", "name": "direct", "pods": []string{"uid-before"}},
		})
	device := func(resource, id string) *v1.ContainerDevices {
		return &v1.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}}
	}
	share := "s"
	one := &v1.ClaimResource{
		DriverName: "d",
		PoolName:   "p",
		DeviceName: "one",
		ShareId:    &share,
		CdiDevices: []*v1.CDIDevice{{Name: "x.com/gpu=1"}},
	}
	two := &v1.ClaimResource{DriverName: "d", PoolName: "p", DeviceName: "two"}
	want := &v1.PodResources{Namespace: "ns", Name: "gpu", Containers: []*v1.ContainerResources{
		{Name: "side", Devices: []*v1.ContainerDevices{device("x.com/b", "9")}},
		{
			Name:    "main",
			Devices: []*v1.ContainerDevices{device("x.com/a", "1"), device("x.com/a", "2"), device("x.com/b", "3")},
			DynamicResources: []*v1.DynamicResource{
				{ClaimNamespace: "ns", ClaimName: "direct", ClaimResources: []*v1.ClaimResource{one}},
			},
		},
		{
			Name: "second",
			DynamicResources: []*v1.DynamicResource{
				{ClaimNamespace: "ns", ClaimName: "direct", ClaimResources: []*v1.ClaimResource{one, two}},
			},
		},
	}}
	plain := &v1.PodResources{Namespace: "ns", Name: "plain", Containers: []*v1.ContainerResources{{Name: "main"}}}
	client := v1.NewPodResourcesListerClient(conn)
	list, err := client.List(t.Context(), &v1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	equal(t, &v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{want, plain}}, list)

	got, err := client.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "gpu"})
	require.NoError(t, err)
	equal(t, want, got.PodResources)
	_, err = client.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "none"})
	require.ErrorContains(t, err, "pod none in namespace ns not found")

	all, err := client.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
	require.NoError(t, err)
	equal(t, &v1.AllocatableResourcesResponse{}, all)

	former, err := v1alpha1.NewPodResourcesListerClient(conn).List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Len(t, former.PodResources, 2)
	require.Equal(t, "x.com/a", former.PodResources[0].Containers[1].Devices[1].ResourceName)
	require.Equal(t, []string{"2"}, former.PodResources[0].Containers[1].Devices[1].DeviceIds)
}

func equal(t *testing.T, want, got proto.Message) {
	t.Helper()
	require.True(t, proto.Equal(want, got), "want %v\ngot  %v", want, got)
}

// Requests above the rate are refused, not queued, and a panic fails only its request.
func TestTooManyRequests(t *testing.T) {
	conn := serve(t, fixed{nil}, nil, nil)
	client := v1.NewPodResourcesListerClient(conn)
	_, err := client.Get(t.Context(), &v1.GetPodResourcesRequest{PodName: "x"}, grpc.WaitForReady(true))
	require.Equal(t, codes.Internal, status.Code(err))
	began, refused := time.Now(), 0
	for range 10 * perSecond {
		_, err := client.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
		if err != nil {
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
			refused++
		}
	}
	served := 10*perSecond - refused
	require.LessOrEqual(t, served, burst+1+int(time.Since(began).Seconds()*perSecond))
	require.GreaterOrEqual(t, served, burst-1)
}
