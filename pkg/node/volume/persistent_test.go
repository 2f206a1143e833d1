package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
)

func claimVolume(claim string, readOnly bool) corev1.Volume {
	return corev1.Volume{
		Name: "v",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly},
		},
	}
}

// pair returns a claim and a volume that are bound to each other.
func pair(source corev1.PersistentVolumeSource) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "claim"},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	return c, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: source, ClaimRef: &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID}}}
}

func localSource(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}

func TestClaimsLeadToVolumes(t *testing.T) {
	dir := t.TempDir()
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"hostPath": {HostPath: &corev1.HostPathVolumeSource{Path: dir}}, "local": localSource(dir),
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := pair(source)
			m, _ := manager(t, claim, pv)
			r, err := m.Setup(t.Context(), podWith(claimVolume("c", true)), "")
			require.NoError(t, err)
			require.Equal(t, dir, r.Volumes["v"].Path)
			require.True(t, r.Volumes["v"].ReadOnly)
			user, err := m.usedBy("pv", "")
			require.NoError(t, err)
			require.EqualValues(t, "u", user)
			require.NoError(t, m.Teardown(t.Context(), "u", true))
			require.DirExists(t, dir)
		})
	}
}

func TestClaimsThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	type objects struct {
		claim *corev1.PersistentVolumeClaim
		pv    *corev1.PersistentVolume
		node  *corev1.Node
	}
	for wrong, change := range map[string]func(*objects){
		`error processing PVC default/c: failed to fetch PVC from API server: persistentvolumeclaims "c" not found`: func(o *objects) { o.claim.Name = "other" },
		"error processing PVC default/c: PVC is being deleted": func(o *objects) {
			o.claim.DeletionTimestamp, o.claim.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{
				"kubernetes.io/pvc-protection",
			}
		},
		"error processing PVC default/c: PVC is not bound": func(o *objects) {
			o.claim.Status.Phase = corev1.ClaimPending
		},
		`failed to fetch PV pv from API server: persistentvolumes "pv" not found`: func(o *objects) { o.pv.Name = "other" },
		"it has a nil pv.Spec.ClaimRef": func(o *objects) {
			o.pv.Spec.ClaimRef = nil
		},
		"pv.Spec.ClaimRef.UID other does not point to claim.UID claim": func(o *objects) {
			o.pv.Spec.ClaimRef.UID = "other"
		},
		"is not a block device, as volumeMode Block wants": func(o *objects) {
			o.pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		},
		"which hostPath volumes cannot have; use a local volume": func(o *objects) {
			o.pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
			o.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}
		},
		"does not exist":     func(o *objects) { o.pv.Spec.Local.Path = filepath.Join(dir, "missing") },
		"is not a directory": func(o *objects) { o.pv.Spec.Local.Path = filepath.Join(dir, "file") },
		"is not absolute":    func(o *objects) { o.pv.Spec.Local.Path = "data" },
		"but local volumes of this node are in": func(o *objects) {
			o.pv.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
		},
		"persistent volumes of the type of pv are not supported on this node": func(o *objects) {
			o.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
				NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"},
			}
		},
		"the node is not registered yet": func(o *objects) {
			o.pv.Spec.NodeAffinity, o.node = onNode("a"), nil
		},
		`MountVolume.NodeAffinity check failed for volume "pv"`: func(o *objects) { o.pv.Spec.NodeAffinity = onNode("a") },
	} {
		t.Run(wrong, func(t *testing.T) {
			claim, pv := pair(localSource(dir))
			o := &objects{
				claim, pv, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelHostname: "b"}}},
			}
			change(o)
			m, _ := manager(t, o.claim, o.pv)
			m.c.Node = func() *corev1.Node { return o.node }
			m.local.dir = dir
			_, err := m.Setup(t.Context(), podWith(claimVolume("c", false)), "")
			require.ErrorContains(t, err, `MountVolume.SetUp failed for volume "v" : `)
			require.ErrorContains(t, err, wrong)
		})
	}
}

func TestLocalBlockVolumes(t *testing.T) {
	device := filepath.Join(t.TempDir(), "device")
	require.NoError(t, unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))))
	link := device + "-by-name"
	require.NoError(t, os.Symlink(device, link))
	claim, pv := pair(localSource(link))
	pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	m, _ := manager(t, claim, pv)
	p := podWith(claimVolume("c", true))
	p.Spec.Containers = []corev1.Container{
		{Name: "a", VolumeDevices: []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}},
	}
	r, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	require.Equal(t, Mounted{Path: link, Block: true, ReadOnly: true}, r.Volumes["v"])
	require.NoError(t, m.Teardown(t.Context(), "u", true))

	p.Spec.InitContainers = []corev1.Container{
		{Name: "i", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
	}
	_, err = m.Setup(t.Context(), p, "")
	require.ErrorContains(t, err, "volume v has volumeMode Block, but is specified in volumeMounts")
	p.Spec.InitContainers = nil
	pv.Spec.VolumeMode, pv.Spec.Local.Path = nil, t.TempDir()
	m, _ = manager(t, claim, pv)
	_, err = m.Setup(t.Context(), p, "")
	require.ErrorContains(t, err, "volume v has volumeMode Filesystem, but is specified in volumeDevices")
}

func onNode(name string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{name}},
		},
	}}}}
}

// TestAPodKeepsItsDyingClaim: a volume that is set up stays usable after its claim was deleted, until the pod ends.
func TestAPodKeepsItsDyingClaim(t *testing.T) {
	claim, pv := pair(localSource(t.TempDir()))
	claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
	m, c := manager(t, claim, pv)
	p := podWith(claimVolume("c", false))
	_, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	require.NoError(t, c.Delete(t.Context(), claim))
	_, err = m.Setup(t.Context(), p, "")
	require.NoError(t, err)
}

func TestEphemeralVolumes(t *testing.T) {
	dir := t.TempDir()
	claim, pv := pair(localSource(dir))
	claim.Name, pv.Spec.ClaimRef.Name = "p-v", "p-v"
	volume := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	m, c := manager(t, claim, pv)
	_, err := m.Setup(t.Context(), podWith(volume), "")
	require.ErrorContains(t, err, "PVC default/p-v was not created for pod default/p (pod is not owner)")
	claim.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(podWith(), corev1.SchemeGroupVersion.WithKind("Pod")),
	}
	require.NoError(t, c.Update(t.Context(), claim))
	r, err := m.Setup(t.Context(), podWith(volume), "")
	require.NoError(t, err)
	require.Equal(t, dir, r.Volumes["v"].Path)
}

// TestVolumesBelongToTheGroup: the files in the volume belong to fsGroup, but not the targets of links.
func TestVolumesBelongToTheGroup(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "b", "file"), nil, 0o400))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	stat := func(path string) (fs.FileMode, uint32) {
		info, err := os.Lstat(path)
		require.NoError(t, err)
		return info.Mode(), info.Sys().(*syscall.Stat_t).Gid
	}
	claim, pv := pair(localSource(dir))
	m, _ := manager(t, claim, pv)
	p := podWith(claimVolume("c", false))
	group, policy := int64(4242), corev1.FSGroupChangeOnRootMismatch
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: &policy}
	_, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	for path, want := range map[string]fs.FileMode{
		".":        0o775 | fs.ModeDir | fs.ModeSetgid,
		"a/b":      0o770 | fs.ModeDir | fs.ModeSetgid,
		"a/b/file": 0o660,
		"pipe":     0o660 | fs.ModeNamedPipe,
	} {
		mode, gid := stat(filepath.Join(dir, path))
		require.EqualValues(t, group, gid, path)
		require.Equal(t, want, mode, path)
	}
	mode, gid := stat(outside)
	require.Equal(t, fs.FileMode(0o600), mode)
	require.Zero(t, gid)

	require.NoError(t, os.Chown(filepath.Join(dir, "a"), 0, 7))
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	_, err = m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	_, gid = stat(filepath.Join(dir, "a"))
	require.EqualValues(t, 7, gid, "the root matches: the rest is not walked")
	policy = corev1.FSGroupChangeAlways
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	_, err = m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	_, gid = stat(filepath.Join(dir, "a"))
	require.EqualValues(t, group, gid)
}

func TestDirectoriesOfVolumes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "local-volumes")
	claim, pv := pair(localSource(filepath.Join(dir, "pv")))
	pv.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
	m, _ := manager(t, claim, pv)
	m.local.dir = dir
	r, err := m.Setup(t.Context(), podWith(claimVolume("c", false)), "")
	require.NoError(t, err)
	path := r.Volumes["v"].Path
	require.Equal(t, filepath.Join(dir, "pv"), path)
	require.NoError(t, os.WriteFile(filepath.Join(path, "data"), []byte("x"), 0o600))
	require.ErrorIs(t, m.Directories().Remove(t.Context(), "pv"), ErrInUse)
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	_, err = m.Setup(t.Context(), podWith(claimVolume("c", false)), "")
	require.NoError(t, err)
	require.Equal(t, "x", read(t, path, "data"), "another pod finds what the first one wrote")
	require.NoError(t, m.Teardown(t.Context(), "u", true))

	for _, name := range []string{"", ".", "..", "../pods", "a/b", "/etc", ".removing-pv"} {
		require.ErrorContains(t, m.Directories().Remove(t.Context(), name), "invalid name of a volume", name)
	}
	require.NoError(t, m.Directories().Remove(t.Context(), "pv"))
	require.NoError(t, m.Directories().Remove(t.Context(), "pv"), "it is gone")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestAFullClaim: a claim that was measured above its size starts no further pod until it is expanded or cleaned.
func TestAFullClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "local-volumes")
	claim, pv := pair(localSource(filepath.Join(dir, "pv")))
	pv.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	m, _ := manager(t, claim, pv)
	m.local.dir = dir
	p := podWith(claimVolume("c", false))
	setup := func() error {
		_, err := m.Setup(t.Context(), p, "")
		return err
	}
	usage := func() uint64 {
		_, claims, err := m.Usage(t.Context(), p)
		require.NoError(t, err)
		return claims["v"].Bytes
	}
	require.NoError(t, setup())
	require.Equal(t, map[string]Claim{"v": {"c", 1 << 20}}, m.Claims(p))
	require.Less(t, usage(), uint64(1<<20))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pv", "file"), make([]byte, 3<<20), 0o600))
	require.Greater(t, usage(), uint64(3<<20))
	require.NoError(t, setup(), "of the pod that runs")
	require.NoError(t, m.Teardown(t.Context(), "u", true))

	require.ErrorContains(t, setup(), `claim "c" is full: 3076Ki are used of its size of 1Mi: expand the claim`)
	p.Spec.Volumes = []corev1.Volume{claimVolume("c", true)}
	require.NoError(t, setup(), "reading is allowed")
	require.Empty(t, m.Claims(p), "and this pod is not evicted")
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	p.Spec.Volumes = []corev1.Volume{claimVolume("c", false)}
	require.NoError(t, m.local.Resize("pv", 4<<20))
	require.NoError(t, setup(), "the size in the object is still the old one")
	require.Equal(t, map[string]Claim{"v": {"c", 4 << 20}}, m.Claims(p))
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	require.NoError(t, m.local.Remove(t.Context(), "pv"))
	size, over := m.local.sizes.of("pv")
	require.Zero(t, size)
	require.False(t, over)
}

// TestKilledDirectories: wherever the agent is killed, the next call makes or removes the directory completely.
func TestKilledDirectories(t *testing.T) {
	for _, point := range []string{"local.mkdir", "local.limited", "local.made", "local.renamed", "local.removed"} {
		t.Run(point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "local-volumes")
			killed := false
			d := &Directories{
				dir: dir, inUse: func(string, types.UID) (types.UID, error) { return "", nil }, fail: func(at string) error {
					if at == point && !killed {
						killed = true
						return os.ErrDeadlineExceeded
					}
					return nil
				},
			}
			path := filepath.Join(dir, "pv")
			again := func(f func() error) {
				if err := f(); err != nil {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					require.NoError(t, f())
				}
			}
			again(func() error { return d.make("pv", path, 1<<30) })
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, 0o777|fs.ModeDir, info.Mode())
			require.NoError(t, os.WriteFile(filepath.Join(path, "data"), nil, 0o600))
			again(func() error { return d.Remove(t.Context(), "pv") })
			require.True(t, killed)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
