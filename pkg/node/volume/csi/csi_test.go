package csi

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 3 * time.Minute
	staging  = spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
)

// A volume is staged for the first pod and unstaged after the last one.
func TestPodsShareAVolume(t *testing.T) {
	b := start(t, append(bound(), described(nil)), staging)
	group := int64(4242)
	one, two := withClaim("one"), withClaim("two")
	one.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	first, err := b.setup(one)
	require.NoError(t, err)
	stage := b.driver.Last("NodeStageVolume").(*spec.NodeStageVolumeRequest)
	require.Equal(t, "handle", stage.VolumeId)
	require.Equal(t, map[string]string{"k": "stage"}, stage.Secrets)
	require.Equal(t, map[string]string{"a": "b"}, stage.VolumeContext)
	require.Equal(t, "ext4", stage.VolumeCapability.GetMount().FsType)
	require.Equal(t, []string{"noatime"}, stage.VolumeCapability.GetMount().MountFlags)
	require.Equal(t, spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, stage.VolumeCapability.AccessMode.Mode)
	publish := b.driver.Last("NodePublishVolume").(*spec.NodePublishVolumeRequest)
	require.Equal(t, b.plugins.Path("pods/one/volumes/kubernetes.io~csi/pv/mount"), publish.TargetPath,
		"drivers read names from it")
	require.Equal(t, stage.StagingTargetPath, publish.StagingTargetPath)
	require.Equal(t, map[string]string{"k": "publish"}, publish.Secrets)
	info, err := os.Stat(first.Path)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|os.ModeSetgid|0o775, info.Mode(), "it belongs to the pod's group")
	require.NoError(t, os.WriteFile(filepath.Join(first.Path, "file"), []byte("text"), 0o600))

	second, err := b.setup(two)
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(second.Path, "file"))
	require.NoError(t, err)
	require.Equal(t, "text", string(data))
	_, err = b.setup(one)
	require.NoError(t, err)
	require.NoError(t, b.teardown(one))
	require.NoError(t, b.teardown(two))
	require.Equal(t,
		[]string{
			"NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume",
			"NodeUnstageVolume",
		}, b.driver.Calls())
	b.clean()
}

// Wherever the agent is killed, or a call fails, the next agent mounts and unmounts the volume completely.
func TestKilledAtEachPoint(t *testing.T) {
	b := start(t, append(bound(), described(nil)), staging)
	p := withClaim("one")
	life := func() error {
		if _, err := b.setup(p); err != nil {
			return err
		}
		return b.teardown(p)
	}
	var points []string
	b.fail = func(point string) error { points = append(points, point); return nil }
	require.NoError(t, life())
	require.Len(t, points, 6)
	for i, point := range points {
		for _, again := range []bool{false, true} {
			n := 0
			b.fail = func(string) error {
				if n++; n-1 == i {
					return errors.New("injected")
				}
				return nil
			}
			require.ErrorContains(t, life(), "injected", point)
			b.fail = nil
			b.restart()
			if again {
				m, err := b.setup(p)
				require.NoError(t, err, point)
				require.NoError(t, os.WriteFile(filepath.Join(m.Path, "file"), nil, 0o600))
				require.FileExists(t, filepath.Join(b.dir, "data/handle/file"))
			}
			require.NoError(t, b.teardown(p), point)
			b.clean()
		}
	}
}

// A block volume is a device file that the driver makes. It is not mounted, and fsGroup does not apply to it.
func TestBlockVolumes(t *testing.T) {
	objects, group := bound(), int64(4242)
	objects[1].(*corev1.PersistentVolume).Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	b := start(t, append(objects, described(nil)), staging)
	device := filepath.Join(b.driver.Data, "handle")
	require.NoError(t, os.MkdirAll(b.driver.Data, 0o755))
	require.NoError(t, unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))))
	p := withClaim("one")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	p.Spec.Containers = []corev1.Container{
		{Name: "c", VolumeDevices: []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}},
	}
	for range 2 { // simulates a kill in between
		mounted, err := b.setup(p)
		require.NoError(t, err)
		require.True(t, mounted.Block)
		var st unix.Stat_t
		require.NoError(t, unix.Stat(mounted.Path, &st))
		require.EqualValues(t, unix.S_IFBLK, st.Mode&unix.S_IFMT)
		require.EqualValues(t, unix.Mkdev(7, 250), st.Rdev)
		require.Zero(t, st.Gid)
		b.restart()
	}
	require.NotNil(t, b.driver.Last("NodeStageVolume").(*spec.NodeStageVolumeRequest).VolumeCapability.GetBlock())
	require.NotNil(t, b.driver.Last("NodePublishVolume").(*spec.NodePublishVolumeRequest).VolumeCapability.GetBlock())
	require.NoError(t, b.teardown(p))
	require.Equal(t, []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"},
		b.driver.Calls())
	b.clean()
}

func TestInlineVolumes(t *testing.T) {
	yes, seconds := true, int64(1200)
	b := start(t, []ctrl.Object{described(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.PodInfoOnMount, s.RequiresRepublish = &yes, &yes
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: &seconds}}
	})}, staging)
	p := withClaim("one")
	p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: "d.example.com", ReadOnly: &yes, VolumeAttributes: map[string]string{"x": "y"}},
	}
	m, err := b.setup(p)
	require.NoError(t, err)
	require.True(t, m.ReadOnly)
	require.WithinDuration(t, time.Now().Add(lookAgain), m.Refresh, 10*time.Second)
	r := b.driver.Last("NodePublishVolume").(*spec.NodePublishVolumeRequest)
	require.Regexp(t, "^csi-[0-9a-f]{64}$", r.VolumeId)
	tokens := map[string]authv1.TokenRequestStatus{}
	require.NoError(t, json.Unmarshal([]byte(r.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"]), &tokens))
	require.Equal(t, "for vault", tokens["vault"].Token)
	delete(r.VolumeContext, "csi.storage.k8s.io/serviceAccount.tokens")
	require.Equal(t,
		map[string]string{
			"x": "y", "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "one",
			"csi.storage.k8s.io/pod.namespace": "default",
			"csi.storage.k8s.io/pod.uid":       "one", "csi.storage.k8s.io/serviceAccount.name": "sa",
		}, r.VolumeContext)
	require.Empty(t, r.StagingTargetPath)
	_, err = b.setup(p)
	require.NoError(t, err)
	require.NoError(t, b.teardown(p))
	require.Equal(t, []string{"NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume"}, b.driver.Calls(),
		"it is published again for a driver that wants it")
	b.clean()
}

func TestRefusals(t *testing.T) {
	tests := map[string]struct {
		change func([]ctrl.Object, *corev1.Pod)
		driver *storagev1.CSIDriver
		want   string
	}{
		"no such driver": {
			driver: described(nil),
			change: func(o []ctrl.Object, _ *corev1.Pod) { o[1].(*corev1.PersistentVolume).Spec.CSI.Driver = "other" },
			want:   "driver name other not found in the list of registered CSI drivers",
		},
		"a mounted device": {driver: described(nil), change: func(o []ctrl.Object, p *corev1.Pod) {
			o[1].(*corev1.PersistentVolume).Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
			p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}}
		}, want: "volume v has volumeMode Block, but is specified in volumeMounts"},
		"no secret": {
			driver: described(nil), change: func(o []ctrl.Object, _ *corev1.Pod) { o[2].SetName("other") },
			want: "fetching NodeStageSecretRef default/stage failed",
		},
		"inline": {driver: described(nil), change: func(_ []ctrl.Object, p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d.example.com"}}
		}, want: `volume mode "Ephemeral" not supported by driver d.example.com (only supports ["Persistent"])`},
		"not attached": {
			driver: described(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = nil }),
			want:   "volume is not attached to this node yet",
		},
		"without its CSIDriver": {
			driver: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
			want:   "volume is not attached to this node yet",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects, p := bound(), withClaim("one")
			if tt.change != nil {
				tt.change(objects, p)
			}
			b := start(t, append(objects, tt.driver), staging)
			_, err := b.setup(p)
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, `MountVolume.SetUp failed for volume "v"`)
			require.NotContains(t, b.driver.Calls(), "NodePublishVolume")
			require.NoError(t, b.teardown(p))
			b.clean()
		})
	}
}

func TestAttachedVolumes(t *testing.T) {
	name := AttachmentName("handle", "d.example.com", "n")
	pv := "pv"
	b := start(t,
		append(bound(), described(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = nil }), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "d.example.com",
				NodeName: "n",
				Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
			},
			Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "sdb"}},
		}),
		staging)
	p := withClaim("one")
	_, err := b.setup(p)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"device": "sdb"},
		b.driver.Last("NodeStageVolume").(*spec.NodeStageVolumeRequest).PublishContext)
	require.Equal(t, map[string]string{"device": "sdb"},
		b.driver.Last("NodePublishVolume").(*spec.NodePublishVolumeRequest).PublishContext)
	require.Equal(t, []corev1.UniqueVolumeName{"kubernetes.io/csi/d.example.com^handle"}, b.csi.VolumesInUse())
	b.restart()
	require.Len(t, b.csi.VolumesInUse(), 1, "a restart does not make it free to be detached")
	require.NoError(t, b.teardown(p))
	b.clean()
}

// The Node and the CSINode show what a driver reports, until it deregisters.
func TestRegistration(t *testing.T) {
	b := start(t, nil)
	var n corev1.Node
	key := types.NamespacedName{Name: "n"}
	require.NoError(t, b.client.Get(t.Context(), key, &n))
	require.Equal(t, map[string]string{"example.com/rack": "1"}, n.Labels)
	require.JSONEq(t, `{"d.example.com":"node-of-d.example.com"}`, n.Annotations["csi.volume.kubernetes.io/nodeid"])
	var c storagev1.CSINode
	require.NoError(t, b.client.Get(t.Context(), key, &c))
	count := int32(5)
	require.Equal(t,
		[]storagev1.CSINodeDriver{
			{
				Name: "d.example.com", NodeID: "node-of-d.example.com", TopologyKeys: []string{"example.com/rack"},
				Allocatable: &storagev1.VolumeNodeResources{Count: &count},
			},
		}, c.Spec.Drivers)
	require.Equal(t, types.UID("node"), c.OwnerReferences[0].UID)

	b.driver.Stop()
	require.Eventually(t, func() bool {
		return b.client.Get(t.Context(), key, &c) == nil && len(c.Spec.Drivers) == 0 &&
			b.client.Get(t.Context(), key, &n) == nil && n.Annotations["csi.volume.kubernetes.io/nodeid"] == ""
	}, patience, time.Millisecond)
	b.driver.MaxVolumes, b.driver.Topology = 6, map[string]string{"example.com/rack": "2"}
	require.NoError(t, b.driver.Start())
	require.Eventually(t, func() bool {
		s := b.driver.Registered()
		return s != nil &&
			s.Error ==
				`RegisterPlugin error -- plugin registration failed with err: error updating Node object with CSI driver node info: detected topology value collision: driver reported "example.com/rack":"2" but existing label is "example.com/rack":"1"`
	}, patience, time.Millisecond)
}

// A driver that hangs blocks only its own volume, and only until the pod's context is done.
func TestHungDriver(t *testing.T) {
	b := start(t, append(bound(), described(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = append(s.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral)
	})), staging)
	hung := make(chan struct{})
	var once sync.Once
	b.driver.Call = func(ctx context.Context, method string, _ any) error {
		if method != "NodeStageVolume" {
			return nil
		}
		once.Do(func() { close(hung) })
		<-ctx.Done()
		return ctx.Err() // the driver stops when the call is cancelled
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for _, uid := range []string{"one", "two"} {
		go func() {
			_, err := b.volumes.Setup(ctx, withClaim(uid), "")
			done <- err
		}()
	}
	<-hung
	other := withClaim("other")
	other.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d.example.com"}}
	_, err := b.setup(other)
	require.NoError(t, err)
	require.NoError(t, b.teardown(other))
	cancel()
	require.Error(t, <-done)
	require.Error(t, <-done)
	require.NoError(t, b.teardown(withClaim("one")))
	require.NoError(t, b.teardown(withClaim("two")))
	b.clean()
}
