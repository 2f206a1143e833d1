package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/coracle-dev/coracle/pkg/node/devices/cdi"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	name     = "example.com/gadget"
	patience = 3 * time.Minute
)

// gadgets is a device plugin for tests.
type gadgets struct {
	deviceplugin.UnimplementedDevicePluginServer
	prefer []string
	cdi    bool
	lists  chan []*deviceplugin.Device

	mu        sync.Mutex
	allocated int
	prepared  [][]string
	fail      error
}

func (g *gadgets) GetDevicePluginOptions(context.Context,
	*deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: g.prefer != nil}, nil
}

func (g *gadgets) ListAndWatch(_ *deviceplugin.Empty,
	s grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	for {
		select {
		case <-s.Context().Done():
			return nil
		case l, ok := <-g.lists:
			if !ok {
				return errors.New("it ends")
			}
			if err := s.Send(&deviceplugin.ListAndWatchResponse{Devices: l}); err != nil {
				return err
			}
		}
	}
}

func (g *gadgets) GetPreferredAllocation(_ context.Context,
	r *deviceplugin.PreferredAllocationRequest) (*deviceplugin.PreferredAllocationResponse, error) {
	return &deviceplugin.PreferredAllocationResponse{
		ContainerResponses: []*deviceplugin.ContainerPreferredAllocationResponse{{DeviceIDs: g.prefer}},
	}, nil
}

func (g *gadgets) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fail != nil {
		return nil, g.fail
	}
	g.allocated++
	out := &deviceplugin.ContainerAllocateResponse{
		Envs: map[string]string{"GADGETS": fmt.Sprint(r.ContainerRequests[0].DevicesIds)},
	}
	out.Devices = []*deviceplugin.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/gadget", Permissions: "rw"}}
	if g.cdi {
		out.CdiDevices = []*deviceplugin.CDIDevice{{Name: "example.com/gadget=1"}}
	}
	return &deviceplugin.AllocateResponse{ContainerResponses: []*deviceplugin.ContainerAllocateResponse{out}}, nil
}

func (g *gadgets) PreStartContainer(_ context.Context,
	r *deviceplugin.PreStartContainerRequest) (*deviceplugin.PreStartContainerResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prepared = append(g.prepared, r.DevicesIds)
	return &deviceplugin.PreStartContainerResponse{}, nil
}

// bench is a node with a Manager.
type bench struct {
	*testing.T
	*Manager
	dir     plugins.Dir
	cdi     string // directory of CDI specifications
	changed chan struct{}
	pods    chan []types.UID // pods whose devices changed
}

func open(t *testing.T) *bench {
	dir, err := os.MkdirTemp("", "dev")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	d, err := plugins.Open(filepath.Join(dir, "k"), "")
	require.NoError(t, err)
	b := &bench{
		T:       t,
		dir:     d,
		cdi:     filepath.Join(dir, "cdi"),
		changed: make(chan struct{}, 100),
		pods:    make(chan []types.UID, 100),
	}
	b.restart()
	return b
}

// restart replaces the Manager, as after a kill of the agent.
func (b *bench) restart() {
	m, err := New(Config{
		Dir: b.dir, File: filepath.Join(b.dir.Root(), "../devices.json"), CDIDirs: []string{b.cdi},
		Changed:       func() { b.changed <- struct{}{} },
		HealthChanged: func(pods []types.UID) { b.pods <- pods }, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(b, err)
	b.Manager = m
}

// run serves registrations until the returned function is called or the test ends.
func (b *bench) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	m := b.Manager
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(b, <-done)
	})
	b.Cleanup(stop)
	require.Eventually(b, func() bool {
		c, err := net.Dial("unix", filepath.Join(b.dir.DevicePlugins(), socketName))
		if err == nil {
			c.Close()
		}
		return err == nil
	}, patience, time.Millisecond)
	return stop
}

// serve starts a device plugin, which runs until the test ends.
func (b *bench) serve(g *gadgets, endpoint string) {
	g.lists = make(chan []*deviceplugin.Device, 10)
	l, err := net.Listen("unix", filepath.Join(b.dir.DevicePlugins(), endpoint))
	require.NoError(b, err)
	s := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(s, g)
	go func() { _ = s.Serve(l) }()
	b.Cleanup(s.Stop)
}

func (b *bench) register(r *deviceplugin.RegisterRequest) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(b.dir.DevicePlugins(), socketName),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer conn.Close()
	_, err = deviceplugin.NewRegistrationClient(conn).Register(b.Context(), r)
	return err
}

func (b *bench) wait() {
	b.Helper()
	select {
	case <-b.changed:
	case <-time.After(patience):
		b.Fatal("nothing changed")
	}
}

func list(ids ...string) (out []*deviceplugin.Device) {
	for _, id := range ids {
		health := deviceplugin.Healthy
		if id[0] == '-' {
			id, health = id[1:], deviceplugin.Unhealthy
		}
		out = append(out, &deviceplugin.Device{ID: id, Health: health})
	}
	return out
}

func pod(uid string, count int64) *corev1.Pod {
	c := corev1.Container{
		Name: "c",
		Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{name: *resource.NewQuantity(count, resource.DecimalSI), "cpu": resource.MustParse("1")},
		},
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}},
	}
}

func (b *bench) give(p *corev1.Pod) (Given, error) {
	return b.Allocate(b.Context(), p, &p.Spec.Containers[0])
}

func (b *bench) counts() (all, healthy int64) {
	c, a := b.Resources()
	all, healthy = -1, -1
	if q, has := c[name]; has {
		all = q.Value()
	}
	if q, has := a[name]; has {
		healthy = q.Value()
	}
	return all, healthy
}

func TestDevicesOfAPlugin(t *testing.T) {
	b := open(t)
	stop := b.run()
	g := &gadgets{prefer: []string{"d3"}}
	b.serve(g, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: "v1beta1", Endpoint: "g.sock", ResourceName: name}))
	g.lists <- list("d1", "d2", "d3", "-d4")
	b.wait()
	all, healthy := b.counts()
	require.EqualValues(t, 4, all)
	require.EqualValues(t, 3, healthy)

	given, err := b.give(pod("one", 1))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"GADGETS": "[d3]"}, given.Env, "what the plugin prefers")
	require.Equal(t, "/dev/gadget", given.Devices[0].ContainerPath)
	_, err = b.give(pod("two", 3))
	require.EqualError(t, err,
		"requested number of devices unavailable for example.com/gadget. Requested: 3, Available: 2")
	given, err = b.give(pod("two", 2))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"GADGETS": "[d1 d2]"}, given.Env)
	_, err = b.give(pod("two", 1))
	require.EqualError(t, err, `pod "two" container "c" changed request for resource "example.com/gadget" from 2 to 1`)

	// A restart of the agent loses no assignment, and a restarted container keeps its devices.
	stop()
	b.restart()
	all, healthy = b.counts()
	require.Zero(t, all, "it waits for the plugin to register again")
	require.Zero(t, healthy)
	require.NoFileExists(t, filepath.Join(b.dir.DevicePlugins(), socketName))
	b.run()
	require.NoFileExists(t, filepath.Join(b.dir.DevicePlugins(), "g.sock"), "so that plugins notice")
	given, err = b.give(pod("one", 1))
	require.NoError(t, err, "also without the plugin")
	require.Equal(t, map[string]string{"GADGETS": "[d3]"}, given.Env)
	require.Equal(t, 2, g.allocated)
	_, err = b.give(pod("three", 1))
	require.EqualError(t, err, "no healthy devices present; cannot allocate unhealthy devices example.com/gadget")
	again := &gadgets{}
	b.serve(again, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: "v1beta1", Endpoint: "g.sock", ResourceName: name}))
	again.lists <- list("d1", "d2", "d3")
	b.wait()
	_, err = b.give(pod("three", 1))
	require.ErrorContains(t, err, "Requested: 1, Available: 0")
	require.ElementsMatch(t, []types.UID{"one", "two"}, b.Pods())
	require.NoError(t, b.Forget("two"))
	given, err = b.give(pod("three", 1))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"GADGETS": "[d1]"}, given.Env)
	require.Equal(t, [][]string{{"d1"}}, again.prepared)

	// After a plugin disconnects, its devices are unhealthy.
	close(again.lists)
	b.wait()
	all, healthy = b.counts()
	require.EqualValues(t, 3, all)
	require.Zero(t, healthy)
}

// A failed Allocate is repeated with the same devices.
func TestPluginThatFails(t *testing.T) {
	b := open(t)
	b.run()
	g := &gadgets{fail: errors.New("broken")}
	b.serve(g, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: "v1beta1", Endpoint: "g.sock", ResourceName: name}))
	g.lists <- list("d1", "d2")
	b.wait()
	_, err := b.give(pod("one", 1))
	require.ErrorContains(t, err, "device plugin Allocate rpc failed with err: rpc error: code = Unknown desc = broken")
	b.restart()
	require.Equal(t, []string{"d1"}, b.assigned["one"]["c"][name].IDs)
}

func TestInitContainersPassTheirDevicesOn(t *testing.T) {
	b := open(t)
	b.run()
	g := &gadgets{}
	b.serve(g, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: "v1beta1", Endpoint: "g.sock", ResourceName: name}))
	g.lists <- list("d1", "d2")
	b.wait()
	p := pod("one", 2)
	always := corev1.ContainerRestartPolicyAlways
	init, side := p.Spec.Containers[0], pod("", 1).Spec.Containers[0]
	init.Name, side.Name, side.RestartPolicy = "init", "side", &always
	p.Spec.InitContainers = []corev1.Container{init, side}
	p.Spec.Containers[0].Resources = side.Resources
	for i, want := range []string{"[d1 d2]", "[d1]", "[d2]"} {
		given, err := b.Allocate(t.Context(), p,
			[]*corev1.Container{&p.Spec.InitContainers[0], &p.Spec.InitContainers[1], &p.Spec.Containers[0]}[i])
		require.NoError(t, err)
		require.Equal(t, want, given.Env["GADGETS"], "the sidecar goes on to use its own")
	}
}

func TestRefusedRegistrations(t *testing.T) {
	b := open(t)
	b.run()
	outside := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", outside)
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Symlink(outside, filepath.Join(b.dir.DevicePlugins(), "link.sock")))
	for want, r := range map[string]*deviceplugin.RegisterRequest{
		`requested API version "v2" is not supported`: {Version: "v2", ResourceName: name},
		`the ResourceName "gadget" is invalid`:        {Version: "v1beta1", ResourceName: "gadget"},
		`the ResourceName "kubernetes.io/x"`:          {Version: "v1beta1", ResourceName: "kubernetes.io/x"},
		"is not below": {
			Version: "v1beta1", ResourceName: name, Endpoint: "../../../../../../run/x.sock",
		},
	} {
		require.ErrorContains(t, b.register(r), want)
	}
	conn, err := b.dir.Dial(b.socket("link.sock"), maxMessage)
	require.NoError(t, err)
	defer conn.Close()
	_, err = deviceplugin.NewDevicePluginClient(conn).GetDevicePluginOptions(t.Context(), &deviceplugin.Empty{})
	require.ErrorContains(t, err, "socket operation on non-socket")
	require.Empty(t, b.resources)
}

// A plugin may name CDI devices instead of describing devices. A specification is applied entirely or not at all.
func TestCDI(t *testing.T) {
	b := open(t)
	b.run()
	g := &gadgets{cdi: true}
	b.serve(g, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: "v1beta1", Endpoint: "g.sock", ResourceName: name}))
	g.lists <- list("d1")
	b.wait()
	_, err := b.give(pod("one", 1))
	require.EqualError(t, err, "unresolvable CDI device example.com/gadget=1")
	specification := func(edits string) {
		require.NoError(t, os.MkdirAll(b.cdi, 0o700))
		require.NoError(t,
			os.WriteFile(filepath.Join(b.cdi, "gadget.json"),
				fmt.Appendf(nil, `{"cdiVersion":"0.6.0","kind":"example.com/gadget","devices":[{"name":"1","containerEdits":%s}]}`,
					edits), 0o600))
	}
	specification(`{"env":["GADGET=1"],"hooks":[{"hookName":"createContainer","path":"/x"}]}`)
	_, err = b.give(pod("one", 1))
	require.ErrorContains(t, err, "hooks")
	specification(`{"env":["GADGET=1"],"deviceNodes":[{"path":"/dev/gadget1","hostPath":"/dev/null"}]}`)
	b.restart() // the plugin's answer was recorded
	given, err := b.give(pod("one", 1))
	require.NoError(t, err)
	require.Equal(t,
		cdi.Edits{Env: []string{"GADGET=1"}, Devices: []cdi.Device{{Path: "/dev/gadget1", HostPath: "/dev/null"}}}, given.CDI)
	require.Equal(t, 1, g.allocated)
}

// No device has two users, whatever runs concurrently.
func TestEachDeviceHasOneUser(t *testing.T) {
	b := open(t)
	b.run()
	g := &gadgets{prefer: []string{"d0"}}
	b.serve(g, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: "v1beta1", Endpoint: "g.sock", ResourceName: name}))
	var ids []string
	for i := range 10 {
		ids = append(ids, fmt.Sprint("d", i))
	}
	g.lists <- list(ids...)
	b.wait()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { _, _ = b.give(pod(fmt.Sprint("p", i), 1)) })
	}
	wg.Wait()
	var got []string
	for _, containers := range b.assigned {
		if a := containers["c"][name]; a != nil {
			got = append(got, a.IDs...)
		}
	}
	slices.Sort(got)
	require.Equal(t, ids, got)
}

// The pod resources report each device's pod, with its NUMA nodes after the plugin has reported them.
func TestWhoHasWhat(t *testing.T) {
	b := open(t)
	b.run()
	g := &gadgets{}
	b.serve(g, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: deviceplugin.Version, Endpoint: "g.sock", ResourceName: name}))
	devices := list("b", "a", "-c")
	devices[1].Topology = &deviceplugin.TopologyInfo{Nodes: []*deviceplugin.NUMANode{{ID: 0}, {ID: 1}}}
	g.lists <- devices
	b.wait()
	require.Equal(t, []Device{{name, "a", []int64{0, 1}}, {name, "b", nil}}, b.Healthy())
	_, err := b.give(pod("1", 1))
	require.NoError(t, err)
	require.Equal(t, []Device{{name, "a", []int64{0, 1}}}, b.Assigned("1", "c"))
	require.Empty(t, b.Assigned("1", "other"))
	require.Empty(t, b.Assigned("2", "c"))

	b.restart()
	require.Equal(t, []Device{{name, "a", nil}}, b.Assigned("1", "c"))
	require.Empty(t, b.Healthy())
	require.NoError(t, b.Forget("1"))
	require.Empty(t, b.Assigned("1", "c"))
}
