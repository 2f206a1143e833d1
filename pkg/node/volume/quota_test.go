package volume

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// quotaFS mounts an ext4 file system of 64 MiB with project quotas, and returns its root.
func quotaFS(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("mkfs.ext4 is missing: apt-get install e2fsprogs")
	}
	image, root := filepath.Join(t.TempDir(), "image"), t.TempDir()
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 64<<20))
	run := func(name string, args ...string) ([]byte, error) { return exec.Command(name, args...).CombinedOutput() }
	out, err := run("mkfs.ext4", "-q", "-m", "0", "-O", "quota,project", "-E", "quotatype=prjquota", image)
	require.NoError(t, err, "%s", out)
	if out, err := run("mount", "-o", "loop,prjquota", image, root); err != nil {
		t.Skipf("this machine mounts no file system with project quotas: %s", out)
	}
	t.Cleanup(func() {
		out, err := run("umount", root)
		require.NoError(t, err, "%s", out)
	})
	return root
}

// writeZeros appends to a file without CAP_SYS_RESOURCE, which bypasses quotas and which containers lack by default.
func writeZeros(path string, size int) error {
	c := exec.Command("setpriv", "--bounding-set=-sys_resource", "dd", "if=/dev/zero", "of="+path, "bs=64k",
		"count="+strconv.Itoa(size>>16), "oflag=append", "conv=notrunc")
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestSizesOfVolumes: a volume cannot exceed its size. The limit grows with the volume, and is removed with it.
func TestSizesOfVolumes(t *testing.T) {
	dir := filepath.Join(quotaFS(t), "local-volumes")
	var fail string
	d := &Directories{
		dir: dir, inUse: func(string, types.UID) (types.UID, error) { return "", nil }, fail: func(at string) error {
			if at == fail {
				fail = ""
				return os.ErrDeadlineExceeded
			}
			return nil
		},
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, fail = range []string{"local.assigned", "local.limited"} {
		require.ErrorIs(t, d.make("b", b, 1<<20), os.ErrDeadlineExceeded, "killed")
	}
	require.NoError(t, d.make("a", a, 4<<20))
	require.NoError(t, d.make("b", b, 1<<20))
	first, err := d.projectOf("a")
	require.NoError(t, err)
	second, err := d.projectOf("b")
	require.NoError(t, err)
	require.NotZero(t, first)
	require.NotEqual(t, first, second)

	require.NoError(t, os.Mkdir(filepath.Join(a, "below"), 0o777))
	require.NoError(t, writeZeros(filepath.Join(a, "below", "file"), 3<<20))
	require.ErrorContains(t, writeZeros(filepath.Join(b, "file"), 2<<20), "quota exceeded")
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(a, &st))
	require.EqualValues(t, 4<<20, st.Blocks*uint64(st.Bsize), "df shows the volume's size")

	require.NoError(t, d.Resize("b", 8<<20))
	require.NoError(t, os.Remove(filepath.Join(b, "file")))
	require.NoError(t, writeZeros(filepath.Join(b, "file"), 6<<20))
	require.NoError(t, d.make("b", b, 7<<20), "the size in the volume's object counts when a pod comes")
	require.ErrorContains(t, writeZeros(filepath.Join(b, "file"), 2<<20), "quota exceeded")
	require.NoError(t, d.Resize("never-made", 1<<20))
	require.ErrorContains(t, d.Resize("a", -1), "invalid size")

	fail = "local.renamed"
	require.ErrorIs(t, d.Remove(t.Context(), "a"), os.ErrDeadlineExceeded)
	require.NoError(t, d.make("c", filepath.Join(dir, "c"), 2<<20))
	third, err := d.projectOf("c")
	require.NoError(t, err)
	require.NotEqual(t, first, third, "files of the volume that goes still have its project")
	require.NoError(t, d.Remove(t.Context(), "a"))
	require.NoError(t, d.make("d", filepath.Join(dir, "d"), 2<<20))
	fourth, err := d.projectOf("d")
	require.NoError(t, err)
	require.Equal(t, first, fourth)
	require.ErrorContains(t, writeZeros(filepath.Join(dir, "d", "file"), 3<<20), "quota exceeded")
	for _, name := range strings.Fields("b c d") {
		require.NoError(t, d.Remove(t.Context(), name))
	}
	root, err := os.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	for id := first; id < first+4; id++ {
		var q quota
		if err := quotaOf(root, id, &q); err == nil {
			require.Zero(t, q.hardBlocks, "no limit is left behind")
		}
	}
}

// TestForgedProjects: a container that assigns another volume's project to its own does not affect the other volume.
func TestForgedProjects(t *testing.T) {
	dir := filepath.Join(quotaFS(t), "local-volumes")
	d := &Directories{dir: dir, inUse: func(string, types.UID) (types.UID, error) { return "", nil }}
	mine, other := filepath.Join(dir, "mine"), filepath.Join(dir, "other")
	require.NoError(t, d.make("mine", mine, 8<<20))
	require.NoError(t, d.make("other", other, 2<<20))
	id, err := d.projectOf("other")
	require.NoError(t, err)
	f, err := os.Open(mine)
	require.NoError(t, err)
	defer f.Close()
	a, err := attributesOf(f)
	require.NoError(t, err)
	a.project = id
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), setAttributes, uintptr(unsafe.Pointer(&a)))
	require.Zero(t, errno)

	size := func() uint64 {
		var q quota
		require.NoError(t, quotaOf(f, id, &q))
		return q.hardBlocks * blockSize
	}
	require.NoError(t, d.Resize("mine", 1<<10))
	require.EqualValues(t, 2<<20, size())
	require.NoError(t, d.make("mine", mine, 32<<20))
	require.EqualValues(t, 2<<20, size())
	require.NoError(t, d.Remove(t.Context(), "mine"))
	require.EqualValues(t, 2<<20, size())
	require.ErrorContains(t, writeZeros(filepath.Join(other, "file"), 4<<20), "quota exceeded")
	require.NoError(t, d.Remove(t.Context(), "other"))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left")
}

// TestSizesWithoutQuotas: volumes are only measured on a file system without quotas.
func TestSizesWithoutQuotas(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "local-volumes")
	d := &Directories{dir: dir, inUse: func(string, types.UID) (types.UID, error) { return "", nil }}
	require.NoError(t, d.make("a", filepath.Join(dir, "a"), 1<<20))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "file"), make([]byte, 2<<20), 0o600))
	require.NoError(t, d.Resize("a", 3<<20))
	require.NoError(t, d.Remove(t.Context(), "a"))
}
