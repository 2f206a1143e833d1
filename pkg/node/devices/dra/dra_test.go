package dra

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	draplugin "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/node/plugins"
	"github.com/coracle-dev/coracle/test/dradriver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 3 * time.Minute

type uncached struct{ ctrl.WithWatch }

func (uncached) Cache() ctrlcache.Cache { panic("not used") }

// bench is a node with a driver.
type bench struct {
	*testing.T
	dir     string
	plugins plugins.Dir
	client  ctrl.WithWatch
	driver  *dradriver.Driver
	claims  *Manager
	stop    func()
	says    chan *drahealth.NodeWatchResourcesResponse // reports of health; nil ends a stream
	changed chan []types.UID                           // the pods whose devices changed
}

func start(t *testing.T, objects ...ctrl.Object) *bench {
	dir, err := os.MkdirTemp("", "dra")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	b := &bench{
		T:       t,
		dir:     dir,
		says:    make(chan *drahealth.NodeWatchResourcesResponse),
		changed: make(chan []types.UID, 64),
	}
	b.plugins, err = plugins.Open(filepath.Join(dir, "k"), "")
	require.NoError(t, err)
	b.client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).
		WithIndex(&resourcev1.ResourceSlice{}, resourcev1.ResourceSliceSelectorDriver, func(o ctrl.Object) []string {
			return []string{o.(*resourcev1.ResourceSlice).Spec.Driver}
		}).
		WithIndex(&resourcev1.ResourceSlice{}, resourcev1.ResourceSliceSelectorNodeName, func(o ctrl.Object) []string {
			return []string{*o.(*resourcev1.ResourceSlice).Spec.NodeName}
		}).Build()
	b.driver = &dradriver.Driver{
		Name: "gpu.example.com", Kubelet: b.plugins.Root(), Public: b.plugins.Path(),
		Devices: func(c *draplugin.Claim) *draplugin.NodePrepareResourceResponse {
			return &draplugin.NodePrepareResourceResponse{
				Devices: []*draplugin.Device{
					{
						RequestNames: []string{"gpu"}, PoolName: "n", DeviceName: "gpu-0", ShareId: new("share"),
						CdiDeviceIds: []string{"example.com/gpu=0"},
					},
				},
			}
		},
	}
	b.driver.Health = func(ctx context.Context, send func(*drahealth.NodeWatchResourcesResponse) error) error {
		for {
			select {
			case r := <-b.says:
				if r == nil {
					return errors.New("out of order")
				}
				if err := send(r); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "cdi"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cdi", "gpu.yaml"), []byte(`
cdiVersion: 0.6.0
kind: example.com/gpu
devices:
- name: "0"
  containerEdits: {env: [GPU=0], deviceNodes: [{path: /dev/gpu0, hostPath: /dev/null}]}
containerEdits: {env: [GPUS=1]}
`), 0o600))
	b.begin()
	t.Cleanup(func() { b.driver.Stop(); b.stop() })
	require.NoError(t, b.driver.Start())
	b.registered()
	return b
}

// begin starts the agent's Manager, as after a restart.
func (b *bench) begin() {
	log := slog.New(slog.NewTextHandler(b.Output(), nil))
	var err error
	b.claims, err = New(Config{
		Client: uncached{b.client}, NodeName: "n", Dir: b.plugins, File: filepath.Join(b.dir, "claims.json"),
		CDIDirs: []string{filepath.Join(b.dir, "cdi")},
		Wipe:    50 * time.Millisecond, HealthChanged: func(pods []types.UID) { b.changed <- pods }, Logger: log,
	})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	w := plugins.New(plugins.Config{
		Dir:      b.plugins,
		Handlers: map[string]plugins.Handler{registration.DRAPlugin: b.claims},
		Logger:   log,
	})
	go func() { ended <- w.Run(ctx) }()
	go func() { ended <- b.claims.Run(ctx) }()
	b.stop = func() {
		cancel()
		require.NoError(b, errors.Join(<-ended, <-ended))
		for _, list := range b.claims.drivers {
			for _, d := range list {
				d.conn.Close()
			}
		}
	}
}

func (b *bench) registered() {
	require.Eventually(b, func() bool {
		_, err := b.claims.driver("gpu.example.com")
		return err == nil
	}, patience, time.Millisecond)
}

func (b *bench) given(p *corev1.Pod) ([]string, error) {
	e, err := b.claims.Given(b.Context(), p, &p.Spec.Containers[0])
	return e.Env, err
}

func user(name string) *corev1.Pod {
	claim := "c"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: &claim}},
			Containers: []corev1.Container{
				{Name: "c", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "mine", Request: "gpu"}}}},
			}},
	}
}

func claimFor(pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "claim"}}
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: "gpu.example.com", Pool: "n", Device: "gpu-0"}}},
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: p, UID: types.UID(p),
		})
	}
	return c
}

// A claim is prepared once for all its pods, also across restarts of the agent, and unprepared after the last pod.
func TestClaimsAreUnpreparedAfterTheLastPod(t *testing.T) {
	b := start(t, claimFor("a", "b"))
	_, err := b.given(user("stranger"))
	require.ErrorContains(t, err, "it is not reserved for the pod")
	require.Empty(t, b.claims.Pods())
	for _, name := range []string{"a", "b", "a"} {
		env, err := b.given(user(name))
		require.NoError(t, err)
		require.Equal(t, []string{"GPUS=1", "GPU=0"}, env)
	}
	require.Equal(t, []string{"prepare c"}, b.driver.Calls())

	b.stop()
	b.begin()
	b.registered()
	require.ElementsMatch(t, []types.UID{"a", "b"}, b.claims.Pods())
	p := user("a")
	require.Equal(t,
		[]Use{{"ns", "c", []UsedDevice{{"gpu.example.com", "n", "gpu-0", "share", []string{"example.com/gpu=0"}}}}},
		b.claims.InUse(p, &p.Spec.Containers[0]))
	require.Empty(t, b.claims.InUse(p, &corev1.Container{Name: "other"}))
	p.UID = "stranger"
	require.Empty(t, b.claims.InUse(p, &p.Spec.Containers[0]))
	env, err := b.given(user("a"))
	require.NoError(t, err)
	require.Equal(t, []string{"GPUS=1", "GPU=0"}, env)
	require.NoError(t, b.claims.Forget(t.Context(), "a"))
	require.Equal(t, []string{"prepare c"}, b.driver.Calls())
	require.NoError(t, b.claims.Forget(t.Context(), "b"))
	require.NoError(t, b.claims.Forget(t.Context(), "b"))
	require.Equal(t, []string{"prepare c", "unprepare c"}, b.driver.Calls())
	require.Empty(t, b.claims.Pods())
}

// If a driver dies while it prepares a claim, it must unprepare the claim, also after a restart of the agent.
func TestInterruptedPreparationIsUndone(t *testing.T) {
	b := start(t, claimFor("a"))
	var broken atomic.Bool
	broken.Store(true)
	b.driver.Call = func(context.Context, string, string) error {
		if broken.Load() {
			return errors.New("out of order")
		}
		return nil
	}
	_, err := b.given(user("a"))
	require.ErrorContains(t, err, "out of order")
	b.stop()
	b.begin()
	b.registered()
	require.Equal(t, []types.UID{"a"}, b.claims.Pods())
	require.ErrorContains(t, b.claims.Forget(t.Context(), "a"), "out of order")
	require.Equal(t, []types.UID{"a"}, b.claims.Pods(), "it is tried again")
	broken.Store(false)
	require.NoError(t, b.claims.Forget(t.Context(), "a"))
	require.Equal(t, []string{"prepare c", "unprepare c", "unprepare c"}, b.driver.Calls())
}

// A device of a force-deleted pod may be allocated to another pod, which has to wait while the first one runs.
func TestDevicesHaveOneUser(t *testing.T) {
	second := claimFor("b")
	second.Name, second.UID = "c2", "claim2"
	b := start(t, claimFor("a"), second)
	_, err := b.given(user("a"))
	require.NoError(t, err)
	other := user("b")
	other.Spec.ResourceClaims[0].ResourceClaimName = &second.Name
	b.stop()
	b.begin()
	b.registered()
	_, err = b.given(other)
	require.ErrorContains(t, err, "device gpu.example.com/n/gpu-0 is still in use with claim ns/c")
	require.False(t, b.claims.Holds("b"))
	require.True(t, b.claims.Holds("a"))
	require.NoError(t, b.claims.Forget(t.Context(), "a"))
	_, err = b.given(other)
	require.NoError(t, err)
	require.Equal(t, []string{"prepare c", "unprepare c", "prepare c2"}, b.driver.Calls())
}

// A driver's answer is bounded, and applied entirely or not at all.
func TestBadAnswers(t *testing.T) {
	b := start(t, claimFor("a"))
	for want, answer := range map[string]*draplugin.NodePrepareResourceResponse{
		"no such device":                     {Error: "no such device"},
		"at most 1024 are accepted":          {Devices: make([]*draplugin.Device, maxDevices+1)},
		`invalid CDI device name "nonsense"`: {Devices: []*draplugin.Device{{CdiDeviceIds: []string{"nonsense"}}}},
		"share ID that is too long": {
			Devices: []*draplugin.Device{{ShareId: new(strings.Repeat("a", 1000))}},
		},
		"request name that is too long": {
			Devices: []*draplugin.Device{{RequestNames: []string{strings.Repeat("a", 1000)}}},
		},
		"unresolvable CDI device example.com/gpu=9": {
			Devices: []*draplugin.Device{{CdiDeviceIds: []string{"example.com/gpu=9"}}},
		},
	} {
		for i := range answer.Devices {
			if answer.Devices[i] == nil {
				answer.Devices[i] = &draplugin.Device{}
			}
		}
		b.driver.Devices = func(*draplugin.Claim) *draplugin.NodePrepareResourceResponse { return answer }
		_, err := b.given(user("a"))
		require.ErrorContains(t, err, want)
		require.NoError(t, b.claims.Forget(t.Context(), "a"))
	}
}

// The slices of an unregistered driver are deleted, also if it left while the agent was down.
func TestSlicesOfLostDriversAreDeleted(t *testing.T) {
	slice := func(name, node, driver string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node},
		}
	}
	b := start(t, slice("mine", "n", "gpu.example.com"), slice("other-node", "m", "gpu.example.com"),
		slice("other-driver", "n", "nic.example.com"))
	left := func() (names []string) {
		var list resourcev1.ResourceSliceList
		require.NoError(t, b.client.List(t.Context(), &list))
		for _, s := range list.Items {
			names = append(names, s.Name)
		}
		return names
	}
	require.Len(t, left(), 3)
	b.stop()
	b.driver.Stop()
	b.begin()
	require.Eventually(t, func() bool { return len(left()) == 2 }, patience, time.Millisecond)
	require.ElementsMatch(t, []string{"other-node", "other-driver"}, left())
	require.Eventually(t, func() bool {
		b.claims.mu.Lock()
		defer b.claims.mu.Unlock()
		return len(b.claims.known) == 0
	}, patience, time.Millisecond)

	require.NoError(t, b.driver.Start())
	b.registered()
	require.NoError(t, b.client.Create(t.Context(), slice("mine", "n", "gpu.example.com")))
	b.driver.Stop()
	require.Eventually(t, func() bool { return len(left()) == 2 }, patience, time.Millisecond)
}

func TestOldDriversAreRefused(t *testing.T) {
	b := start(t)
	b.driver.Stop()
	old := &dradriver.Driver{
		Name:     "old.example.com",
		Kubelet:  b.plugins.Root(),
		Public:   b.plugins.Path(),
		Versions: []string{"v1beta1.DRAPlugin"},
	}
	require.NoError(t, old.Start())
	defer old.Stop()
	require.Eventually(t, func() bool { return old.Registered() != nil }, patience, time.Millisecond)
	require.False(t, old.Registered().PluginRegistered)
	require.Contains(t, old.Registered().Error, "this node supports v1.DRAPlugin")
}

// A container gets only its own devices from the claim for the pod's extended resources.
func TestExtendedResources(t *testing.T) {
	b := start(t, claimFor("a"))
	b.driver.Devices = func(*draplugin.Claim) *draplugin.NodePrepareResourceResponse {
		return &draplugin.NodePrepareResourceResponse{
			Devices: []*draplugin.Device{
				{RequestNames: []string{"container-0-request-0"}, CdiDeviceIds: []string{"example.com/gpu=0"}},
			},
		}
	}
	p := user("a")
	p.Spec.ResourceClaims = nil
	wants := corev1.ResourceRequirements{Requests: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: wants}, {Name: "other"}}
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "c", RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"}},
	}
	env, err := b.given(p)
	require.NoError(t, err)
	require.Equal(t, []string{"GPUS=1", "GPU=0"}, env)
	other, err := b.claims.Given(t.Context(), p, &p.Spec.Containers[1])
	require.NoError(t, err)
	require.Empty(t, other.Env)
	require.True(t, Serves(p, "c", "example.com/gpu"))
	require.False(t, Serves(p, "other", "example.com/gpu"))
	require.NoError(t, b.claims.Forget(t.Context(), "a"))
	require.Equal(t, []string{"prepare c", "unprepare c"}, b.driver.Calls())

	stranger := p.DeepCopy()
	stranger.UID = "stranger"
	_, err = b.given(stranger)
	require.ErrorContains(t, err, "it is not reserved for the pod")
}
