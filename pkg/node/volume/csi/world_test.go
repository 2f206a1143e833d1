package csi

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/coracle-dev/coracle/pkg/node/plugins"
	"github.com/coracle-dev/coracle/pkg/node/volume"
	"github.com/coracle-dev/coracle/test/csidriver"
)

type uncached struct{ ctrl.WithWatch }

func (uncached) Cache() ctrlcache.Cache { panic("not used") }

// bench is a node with a driver and pods with volumes.
type bench struct {
	*testing.T
	client     ctrl.WithWatch
	dir        string
	plugins    plugins.Dir
	driver     *csidriver.Driver
	registered chan struct{}
	fail       func(string) error

	mu     sync.Mutex
	events []string

	csi     *Manager
	volumes *volume.Manager
}

// start starts the agent's Manager and a driver with the given capabilities.
func start(t *testing.T, objects []ctrl.Object, can ...spec.NodeServiceCapability_RPC_Type) *bench {
	dir, err := os.MkdirTemp("", "csi")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	b := &bench{T: t, dir: dir, registered: make(chan struct{}, 100)}
	b.plugins, err = plugins.Open(filepath.Join(dir, "k"), "")
	require.NoError(t, err)
	objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}})
	b.client = fake.NewClientBuilder().
		WithScheme(clientgoscheme.Scheme).
		WithObjects(objects...).WithStatusSubresource(&corev1.PersistentVolumeClaim{}, &storagev1.VolumeAttachment{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceCreate: func(_ context.Context, _ ctrl.Client, _ string, _ ctrl.Object, r ctrl.Object,
				_ ...ctrl.SubResourceCreateOption) error {
				request := r.(*authv1.TokenRequest)
				request.Status = authv1.TokenRequestStatus{
					Token: "for " + request.Spec.Audiences[0], ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
				}
				return nil
			},
		}).Build()
	b.driver = &csidriver.Driver{
		Name: "d.example.com", Kubelet: b.plugins.Root(), Public: b.plugins.Path(), Data: filepath.Join(dir, "data"),
		Capabilities: can,
		Topology:     map[string]string{"example.com/rack": "1"}, MaxVolumes: 5,
	}
	b.restart()
	require.NoError(t, b.driver.Start())
	t.Cleanup(b.driver.Stop)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w := plugins.New(plugins.Config{
		Dir:      b.plugins,
		Handlers: map[string]plugins.Handler{registration.CSIPlugin: handler{b}},
		Logger:   slog.New(slog.DiscardHandler),
	})
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	b.wait()
	return b
}

// handler passes registrations to the current Manager.
type handler struct{ b *bench }

func (h handler) Validate(i plugins.Info) error { return h.b.csi.Validate(i) }

func (h handler) Register(ctx context.Context, i plugins.Info) error {
	return h.b.csi.Register(ctx, i)
}

func (h handler) Deregister(i plugins.Info) { h.b.csi.Deregister(i) }

func (b *bench) wait() {
	b.Helper()
	select {
	case <-b.registered:
	case <-time.After(patience):
		b.Fatal("the driver was not registered")
	}
}

// restart replaces the agent's state in memory, as after a kill.
func (b *bench) restart() {
	old := b.csi
	m, err := New(Config{
		Client: uncached{b.client}, NodeName: "n", Dir: b.plugins, StateDir: filepath.Join(b.dir, "state"),
		Node:       func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}} },
		Registered: func() { b.registered <- struct{}{} },
		UseChanged: func() {}, Event: b.event, Logger: slog.New(slog.DiscardHandler), Failpoints: func(p string) error {
			if b.fail != nil {
				return b.fail(p)
			}
			return nil
		},
	})
	require.NoError(b, err)
	if old != nil {
		m.drivers = maps.Clone(old.drivers)
	}
	b.csi = m
	b.volumes = volume.New(volume.Config{
		Client: uncached{b.client}, Dir: filepath.Join(b.dir, "pods"), MemoryDir: filepath.Join(b.dir, "memory"),
		Changed: func(types.UID) {}, Plugins: []volume.Plugin{m}, Logger: slog.New(slog.DiscardHandler),
	})
}

func (b *bench) event(about corev1.ObjectReference, kind, reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, kind+" "+reason+" "+about.Kind+" "+about.Name+": "+message)
}

// said returns the events since it was last called.
func (b *bench) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.events
	b.events = nil
	return out
}

func (b *bench) setup(p *corev1.Pod) (volume.Mounted, error) {
	r, err := b.volumes.Setup(b.Context(), p, "")
	return r.Volumes["v"], err
}

func (b *bench) teardown(p *corev1.Pod) error { return b.volumes.Teardown(b.Context(), p.UID, true) }

// clean checks that nothing is mounted or recorded.
func (b *bench) clean() {
	b.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(b, err)
	require.NotContains(b, string(mounts), b.dir)
	for _, dir := range []string{"state", "k/pods", "pods", "k/plugins/kubernetes.io/csi/d.example.com"} {
		left, err := os.ReadDir(filepath.Join(b.dir, dir))
		if !errors.Is(err, os.ErrNotExist) {
			require.NoError(b, err)
		}
		require.Empty(b, left, dir)
	}
	require.Empty(b, b.csi.VolumesInUse())
}

func withClaim(uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)},
		Spec: corev1.PodSpec{ServiceAccountName: "sa", Volumes: []corev1.Volume{
			{
				Name:         "v",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
			}}},
	}
}

// bound returns a claim and its volume, with secrets.
func bound() []ctrl.Object {
	ref := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "default", Name: name}
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return []ctrl.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "claim"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size.DeepCopy()},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "claim"}, MountOptions: []string{"noatime"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "handle", FSType: "ext4",
						VolumeAttributes: map[string]string{"a": "b"}, NodeStageSecretRef: ref("stage"),
						NodePublishSecretRef: ref("publish")},
				},
			},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stage"}, Data: map[string][]byte{"k": []byte("stage")},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "publish"},
			Data:       map[string][]byte{"k": []byte("publish")},
		},
	}
}

func described(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	no, policy := false, storagev1.FileFSGroupPolicy
	d := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "d.example.com"},
		Spec: storagev1.CSIDriverSpec{AttachRequired: &no, FSGroupPolicy: &policy,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}},
	}
	if change != nil {
		change(&d.Spec)
	}
	return d
}
