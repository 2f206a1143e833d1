// Package podresources serves the kubelet's pod resources API on a local socket: which devices of device plugins and
// resource claims each container has (KEP-606, KEP-2043, KEP-3695). Exporters of device metrics use it to find the
// pod of a device.
//
// Its invariant: requests do not change anything, and the number of concurrent requests is limited, which bounds
// memory.
package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/devices"
	"github.com/coracle-dev/coracle/pkg/node/devices/dra"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

const (
	socketName = "kubelet.sock"
	// perSecond and burst limit requests, as in the kubelet; atOnce limits concurrent responses.
	perSecond, burst = 100, 10
	atOnce           = 4
)

// Pods provides the pods of this node.
type Pods interface {
	Pods() []*corev1.Pod
	Find(namespace, name string, uid types.UID) (*corev1.Pod, bool)
}

// Config of a Server.
type Config struct {
	Dir     plugins.Dir
	Pods    Pods
	Devices *devices.Manager
	Claims  *dra.Manager
	Logger  *slog.Logger
}

// Server serves the API.
type Server struct {
	c       Config
	guard   run.Guard
	limiter *rate.Limiter
	slots   chan struct{}
}

// New returns a Server.
func New(c Config) *Server {
	return &Server{
		c:       c,
		guard:   run.Guard{Log: c.Logger, Component: "pod resources"},
		limiter: rate.NewLimiter(perSecond, burst),
		slots:   make(chan struct{}, atOnce),
	}
}

// Run serves the API until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	return s.c.Dir.Serve(ctx, &s.guard, filepath.Join(plugins.PodResources, socketName), func(g *grpc.Server) {
		v1.RegisterPodResourcesListerServer(g, &server{s: s})
		v1alpha1.RegisterPodResourcesListerServer(g, &alpha{s: s})
	}, grpc.ChainUnaryInterceptor(s.limit))
}

// limit refuses requests above the rate. Other requests wait for a slot.
func (s *Server) limit(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	if !s.limiter.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return handler(ctx, request)
}

type server struct {
	v1.UnimplementedPodResourcesListerServer
	s *Server
}

func (v *server) List(context.Context, *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	out := &v1.ListPodResourcesResponse{}
	for _, p := range v.s.c.Pods.Pods() {
		if !ended(p) {
			out.PodResources = append(out.PodResources, v.s.of(p))
		}
	}
	return out, nil
}

func (v *server) Get(_ context.Context, r *v1.GetPodResourcesRequest) (*v1.GetPodResourcesResponse, error) {
	p, ok := v.s.c.Pods.Find(r.PodNamespace, r.PodName, "")
	if !ok {
		return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace) // the kubelet's text
	}
	return &v1.GetPodResourcesResponse{PodResources: v.s.of(p)}, nil
}

// GetAllocatableResources implements v1.PodResourcesListerServer. CPUs and memory are not assigned to single
// containers, so it reports none, as a kubelet with default policies.
func (v *server) GetAllocatableResources(context.Context,
	*v1.AllocatableResourcesRequest) (*v1.AllocatableResourcesResponse, error) {
	return &v1.AllocatableResourcesResponse{Devices: describe(v.s.c.Devices.Healthy())}, nil
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func containers(p *corev1.Pod) (out []*corev1.Container) {
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	for i := range p.Spec.Containers {
		out = append(out, &p.Spec.Containers[i])
	}
	return out
}

func (s *Server) of(p *corev1.Pod) *v1.PodResources {
	out := &v1.PodResources{Name: p.Name, Namespace: p.Namespace}
	for _, c := range containers(p) {
		out.Containers = append(out.Containers, &v1.ContainerResources{
			Name:             c.Name,
			Devices:          describe(s.c.Devices.Assigned(p.UID, c.Name)),
			DynamicResources: s.claims(p, c),
		})
	}
	return out
}

// describe returns an entry for each device and each of its NUMA nodes, as in the kubelet.
func describe(list []devices.Device) (out []*v1.ContainerDevices) {
	for _, d := range list {
		if len(d.Nodes) == 0 {
			out = append(out, &v1.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}})
		}
		for _, n := range d.Nodes {
			out = append(out, &v1.ContainerDevices{
				ResourceName: d.Resource,
				DeviceIds:    []string{d.ID},
				Topology:     &v1.TopologyInfo{Nodes: []*v1.NUMANode{{ID: n}}},
			})
		}
	}
	return out
}

func (s *Server) claims(p *corev1.Pod, c *corev1.Container) (out []*v1.DynamicResource) {
	for _, use := range s.c.Claims.InUse(p, c) {
		r := &v1.DynamicResource{ClaimName: use.Name, ClaimNamespace: use.Namespace}
		for _, d := range use.Devices {
			device := &v1.ClaimResource{DriverName: d.Driver, PoolName: d.Pool, DeviceName: d.Name}
			if d.Share != "" {
				device.ShareId = &d.Share
			}
			for _, name := range d.CDI {
				device.CdiDevices = append(device.CdiDevices, &v1.CDIDevice{Name: name})
			}
			r.ClaimResources = append(r.ClaimResources, device)
		}
		out = append(out, r)
	}
	return out
}

// alpha implements v1alpha1, which some exporters still use.
type alpha struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	s *Server
}

func (a *alpha) List(context.Context, *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	out := &v1alpha1.ListPodResourcesResponse{}
	for _, p := range a.s.c.Pods.Pods() {
		if ended(p) {
			continue
		}
		of := &v1alpha1.PodResources{Name: p.Name, Namespace: p.Namespace}
		for _, c := range containers(p) {
			r := &v1alpha1.ContainerResources{Name: c.Name}
			for _, d := range describe(a.s.c.Devices.Assigned(p.UID, c.Name)) {
				r.Devices = append(r.Devices, &v1alpha1.ContainerDevices{ResourceName: d.ResourceName, DeviceIds: d.DeviceIds})
			}
			of.Containers = append(of.Containers, r)
		}
		out.PodResources = append(out.PodResources, of)
	}
	return out, nil
}
