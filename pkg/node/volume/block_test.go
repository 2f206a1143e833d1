package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis/storage"
)

// loopChangeFD is LOOP_CHANGE_FD of linux/loop.h.
const loopChangeFD = 0x4c06

// patience is how long to wait for processes, such as udev, that keep a device open for a moment.
const patience = time.Minute

// blockPair returns a claim and its provisioned volume of volumeMode Block.
func blockPair(dir, size string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim, pv := pair(localSource(filepath.Join(dir, "pv")))
	pv.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
	pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	claim.Status.Capacity = pv.Spec.Capacity.DeepCopy()
	return claim, pv
}

// blockManager returns a Manager with one block volume.
func blockManager(t *testing.T, size string) (*Manager, ctrl.Client, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "local-volumes")
	claim, pv := blockPair(dir, size)
	m, c := manager(t, claim, pv)
	m.local.dir = dir
	t.Cleanup(func() { require.NoError(t, DetachAll(dir)) })
	return m, c, dir
}

func loopsBelow(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		file, err := os.Open(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		bound, err := loopsOf(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		for _, l := range bound {
			out = append(out, l.path)
		}
	}
	return out
}

// free waits until no loop device is bound to a file of a directory, also to a deleted file. Holders have closed
// their devices by then.
func free(t *testing.T, dir string) {
	t.Helper()
	require.Eventually(t, func() bool {
		bound, err := filepath.Glob(filepath.Join(blockDir, "loop*", "loop", "backing_file"))
		require.NoError(t, err)
		for _, path := range bound {
			if file, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(file), dir+"/") {
				return false
			}
		}
		return true
	}, patience, 10*time.Millisecond)
}

// holderOf returns the holder of a loop device.
func holderOf(t *testing.T, device string) string {
	t.Helper()
	file, err := os.Open(device)
	require.NoError(t, err)
	defer file.Close()
	holders, err := loopsOf(file)
	require.NoError(t, err)
	require.Len(t, holders, 1)
	return holders[0].path
}

func blockPod(uid types.UID) *corev1.Pod {
	p := podWith(claimVolume("c", false))
	p.UID = uid
	p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
	return p
}

func setUp(t *testing.T, m *Manager, uid types.UID) string {
	t.Helper()
	r, err := m.Setup(t.Context(), blockPod(uid), "")
	require.NoError(t, err)
	require.True(t, r.Volumes["v"].Block)
	return r.Volumes["v"].Path
}

func sizeOfDevice(t *testing.T, device string) int64 {
	t.Helper()
	file, err := os.Open(device)
	require.NoError(t, err)
	defer file.Close()
	size, err := file.Seek(0, 2)
	require.NoError(t, err)
	return size
}

func writeAt(t *testing.T, device, text string, at int64) {
	t.Helper()
	file, err := os.OpenFile(device, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte(text), at)
	require.NoError(t, errors.Join(err, file.Sync(), file.Close()))
}

func readAt(t *testing.T, path string, at int64, n int) string {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	text := make([]byte, n)
	_, err = file.ReadAt(text, at)
	require.NoError(t, err)
	return string(text)
}

// TestProvisionedBlockVolumes: pods get a device of the requested size, which is reserved, in turn and at once. A
// restarted agent finds it. It is detached with the last pod. Removing the volume leaves nothing.
func TestProvisionedBlockVolumes(t *testing.T) {
	m, _, dir := blockManager(t, "3000001")
	device := setUp(t, m, "u")
	require.EqualValues(t, 3002368, sizeOfDevice(t, device), "rounded up to 4 KiB")
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(filepath.Join(dir, "pv"), &st))
	require.GreaterOrEqual(t, st.Blocks*512, int64(3000001), "it is reserved")
	require.EqualValues(t, unix.S_IFREG|0o600, st.Mode)
	writeAt(t, device, "kept", 2_000_000)
	require.Equal(t, device, setUp(t, m, "u"), "nothing changes")

	next := New(m.c)
	next.local.dir = dir
	require.Equal(t, device, setUp(t, next, "u"))
	require.Equal(t, device, setUp(t, next, "other"), "two pods of a node share it")
	require.NoError(t, next.Teardown(t.Context(), "u", true))
	require.Equal(t, []string{device}, loopsBelow(t, dir))
	require.ErrorIs(t, next.Directories().Remove(t.Context(), "pv"), ErrInUse)
	require.NoError(t, next.Teardown(t.Context(), "other", true))
	free(t, dir)

	device = setUp(t, next, "u")
	require.Equal(t, "kept", readAt(t, device, 2_000_000, 4))
	require.NoError(t, next.Teardown(t.Context(), "u", true))
	require.NoError(t, next.Directories().Remove(t.Context(), "pv"))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestKilledBlockVolumes: wherever the agent is killed, the next one sets up or removes the volume completely.
func TestKilledBlockVolumes(t *testing.T) {
	for _, point := range []string{"block.begun", "block.reserved", "block.bound", "block.held"} {
		for _, then := range []string{"started again", "torn down"} {
			t.Run(point+" "+then, func(t *testing.T) {
				m, _, dir := blockManager(t, "1Mi")
				m.local.fail = func(at string) error {
					if at == point {
						return os.ErrDeadlineExceeded
					}
					return nil
				}
				_, err := m.Setup(t.Context(), blockPod("u"), "")
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				next := New(m.c)
				next.local.dir = dir
				if then == "started again" {
					holderOf(t, setUp(t, next, "u"))
				}
				require.NoError(t, next.Teardown(t.Context(), "u", true))
				free(t, dir)
				require.NoError(t, next.Directories().Remove(t.Context(), "pv"))
				left, err := os.ReadDir(dir)
				require.NoError(t, err)
				require.Empty(t, left)
			})
		}
	}
}

// TestTenantsKeepTheirDevice: a pod may detach its loop device, which could then be bound to another pod's volume.
// While the pod runs, the device stays bound to its volume, whatever its containers do.
func TestTenantsKeepTheirDevice(t *testing.T) {
	m, _, dir := blockManager(t, "1Mi")
	device := setUp(t, m, "u")
	holder := holderOf(t, device)
	tenant, err := os.OpenFile(device, os.O_RDWR, 0)
	require.NoError(t, err)
	fd := int(tenant.Fd())
	own, err := os.Create(filepath.Join(t.TempDir(), "own"))
	require.NoError(t, err)
	defer own.Close()
	require.NoError(t, unix.IoctlLoopSetStatus64(fd, &unix.LoopInfo64{Offset: 4096, Sizelimit: 4096}))
	require.NoError(t, unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0))
	require.Error(t, unix.IoctlSetInt(fd, loopChangeFD, int(own.Fd())))
	require.Error(t, unix.IoctlSetInt(fd, unix.LOOP_SET_FD, int(own.Fd())))
	require.NoError(t, tenant.Close())
	require.Equal(t, []string{device}, loopsBelow(t, dir), "it is not detached")

	require.Equal(t, device, setUp(t, m, "u"))
	require.EqualValues(t, 1<<20, sizeOfDevice(t, device), "what it changed is taken back")
	info, err := loopStatus(device)
	require.NoError(t, err)
	require.Zero(t, info.Flags&^unix.LO_FLAGS_DIRECT_IO)
	require.Equal(t, holder, holderOf(t, device))

	tenant, err = os.OpenFile(device, os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetInt(int(tenant.Fd()), unix.LOOP_CLR_FD, 0))
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	require.NotEmpty(t, loopsBelow(t, dir), "whoever still has it open has nobody else's")
	require.NoError(t, tenant.Close())
	free(t, dir)
}

// TestRoomForBlockVolumes: the node promises no more space than it has, and none that a pod discarded.
func TestRoomForBlockVolumes(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", root, "tmpfs", 0, "size=64m"))
	// another process may have a device open
	t.Cleanup(func() { require.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	d := &Directories{
		dir: filepath.Join(root, "local-volumes"), inUse: func(string, types.UID) (types.UID, error) { return "", nil },
	}
	t.Cleanup(func() { require.NoError(t, DetachAll(d.dir)) })
	attach := func(volume string, size int64) (string, error) {
		return d.attach(volume, filepath.Join(d.dir, volume), size, size)
	}
	_, err := attach("large", 60<<20)
	require.ErrorIs(t, err, ErrNoRoom)
	_, err = attach("larger", 1<<62)
	require.ErrorIs(t, err, ErrNoRoom)
	_, err = attach("largest", math.MaxInt64)
	require.ErrorIs(t, err, ErrNoRoom)
	device, err := attach("a", 40<<20)
	require.NoError(t, err)
	_, err = attach("b", 20<<20)
	require.ErrorIs(t, err, ErrNoRoom)
	left, err := os.ReadDir(d.dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "of what is refused nothing is left")

	image, err := os.OpenFile(filepath.Join(d.dir, "a"), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 40<<20))
	require.NoError(t, image.Close())
	_, err = attach("b", 20<<20)
	require.ErrorIs(t, err, ErrNoRoom, "it is promised to the other one")
	_, err = attach("b", 10<<20)
	require.NoError(t, err)
	again, err := attach("a", 40<<20)
	require.NoError(t, err)
	require.Equal(t, device, again)
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(filepath.Join(d.dir, "a"), &st))
	require.EqualValues(t, 40<<20, st.Blocks*512, "it is reserved again")

	require.ErrorIs(t, d.Resize("b", 30<<20), ErrNoRoom)
	again, err = d.attach("b", filepath.Join(d.dir, "b"), 10<<20, 30<<20)
	require.NoError(t, err, "with the size that it has")
	require.EqualValues(t, 10<<20, sizeOfDevice(t, again))
	_, err = d.attach("b", filepath.Join(d.dir, "b"), 1<<20, 1<<20)
	require.ErrorContains(t, err, "has 10485760 bytes, and the volume 1048576")
}

// TestRoughly: the wanted size is never printed as less than the free one, and both are short.
func TestRoughly(t *testing.T) {
	for n, want := range map[int64][2]string{
		0: {"0", "0"}, 4096: {"4096", "4096"}, 10 << 10: {"10Ki", "10Ki"}, 10<<30 + 1: {"10Gi", "11Gi"},
		9<<30 + 1: {"9216Mi", "9217Mi"}, 5 << 40: {"5120Gi", "5120Gi"},
		math.MaxInt64: {"8191Pi", "8192Pi"},
	} {
		require.Equal(t, want, [2]string{roughly(n, false), roughly(n, true)})
	}
}

// TestBlockVolumesGrow: volumes grow while they are in use, to the sizes of their claims.
func TestBlockVolumesGrow(t *testing.T) {
	m, c, dir := blockManager(t, "1Mi")
	require.NoError(t, m.Directories().Resize("pv", 1<<20), "it was never used")
	device := setUp(t, m, "u")
	require.NoError(t, m.Directories().Resize("pv", 2<<20))
	require.EqualValues(t, 2<<20, sizeOfDevice(t, device))
	require.NoError(t, m.Teardown(t.Context(), "u", true))

	_, pv := blockPair(dir, "3Mi")
	var now corev1.PersistentVolume
	require.NoError(t, c.Get(t.Context(), ctrl.ObjectKeyFromObject(pv), &now))
	now.Spec.Capacity = pv.Spec.Capacity
	require.NoError(t, c.Update(t.Context(), &now))
	require.EqualValues(t, 2<<20, sizeOfDevice(t, setUp(t, m, "u")), "the claim does not say yet that it has grown")
	m.local.fail = func(at string) error {
		if at == "block.grown" {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	require.ErrorIs(t, m.Directories().Resize("pv", 3<<20), os.ErrDeadlineExceeded)
	next := New(m.c)
	next.local.dir = dir
	require.EqualValues(t, 3<<20, sizeOfDevice(t, setUp(t, next, "u")), "it was killed before the device knew")
}

// TestCopiesOfBlockVolumes: a volume is copied only while no pod uses it, and not usable meanwhile.
func TestCopiesOfBlockVolumes(t *testing.T) {
	m, _, dir := blockManager(t, "1Mi")
	d := m.Directories()
	device := setUp(t, m, "u")
	writeAt(t, device, "then", 500_000)
	_, err := d.TakeSnapshot(t.Context(), "s", "pv", 1<<20, nil)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorIs(t, d.Fill(t.Context(), "clone", "volume/pv", 1<<20, nil), ErrInUse)
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	d.fail = func(at string) error {
		if at == "snapshot.copied" || at == "fill.copied" {
			_, err := m.Setup(t.Context(), blockPod("u"), "")
			require.ErrorContains(t, err, ErrBusy.Error())
			require.NoError(t, m.Teardown(t.Context(), "u", true))
		}
		return nil
	}
	s, err := d.TakeSnapshot(t.Context(), "s", "pv", 1<<20, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, s.Size)
	require.NoError(t, d.Fill(t.Context(), "clone", "volume/pv", 2<<20, nil))
	d.fail = nil
	writeAt(t, setUp(t, m, "u"), "now!", 500_000)
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	require.NoError(t, d.Fill(t.Context(), "restored", "snapshot/s", 1<<20, nil))
	for volume, size := range map[string]int64{"clone": 2 << 20, "restored": 1 << 20} {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(filepath.Join(dir, volume), &st))
		require.Equal(t, size, st.Size)
		require.GreaterOrEqual(t, st.Blocks*512, size, "it is reserved before the claim is bound")
		device, err := d.attach(volume, filepath.Join(dir, volume), size, size)
		require.NoError(t, err)
		require.Equal(t, "then", readAt(t, device, 500_000, 4))
		require.NoError(t, d.Remove(t.Context(), volume))
	}
	require.ErrorIs(t, d.Fill(t.Context(), "huge", "snapshot/s", 1<<60, nil), ErrNoRoom)

	// A volume that was never used.
	_, err = d.TakeSnapshot(t.Context(), "empty", "unused", 1<<20, nil)
	require.NoError(t, err)
	require.NoError(t, d.Fill(t.Context(), "of-empty", "snapshot/empty", 1<<20, nil))
	device, err = d.attach("of-empty", filepath.Join(dir, "of-empty"), 1<<20, 1<<20)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, sizeOfDevice(t, device))
	for _, snapshot := range []string{"s", "empty"} {
		require.NoError(t, d.RemoveSnapshot(t.Context(), snapshot))
	}
	for _, volume := range []string{"pv", "of-empty"} {
		require.NoError(t, d.Remove(t.Context(), volume))
	}
	free(t, dir)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestBlockVolumesAreFiles: neither directories nor links are used as block volumes, nor files as directories.
func TestBlockVolumesAreFiles(t *testing.T) {
	d := directories(t, nil)
	path := func(volume string) string { return filepath.Join(d.dir, volume) }
	require.NoError(t, d.make("full", path("full"), 1<<20))
	require.NoError(t, os.WriteFile(filepath.Join(path("full"), "file"), nil, 0o600))
	require.NoError(t, os.Symlink("/dev/null", path("link")))
	require.NoError(t, unix.Mkfifo(path("pipe"), 0o600))
	for i, volume := range []string{"full", "link", "pipe"} {
		_, err := d.attach(volume, path(volume), 1<<20, 1<<20)
		require.Error(t, err, fmt.Sprint(i))
	}
	require.NoError(t, os.WriteFile(path("image"), nil, 0o600))
	require.ErrorIs(t, d.make("image", path("image"), 1<<20), unix.ENOTDIR)
	_, err := d.attach("../image", path("image"), 1<<20, 1<<20)
	require.ErrorContains(t, err, "invalid name of a volume")
	_, err = d.attach("image", "/dev/vda", 1<<20, 1<<20)
	require.ErrorContains(t, err, "but local volumes of this node are in")
}
