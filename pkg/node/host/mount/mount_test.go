package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of mounts mount file systems: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// layers creates directories on disk with one file each.
func layers(t *testing.T, n int) []string {
	var dirs []string
	for i := range n {
		dir := filepath.Join(t.TempDir(), fmt.Sprint("layer-", i))
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("file-", i)), []byte("x"), 0o600))
		dirs = append(dirs, dir)
	}
	return dirs
}

func names(t *testing.T, fd int) []string {
	dir, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	require.NoError(t, err)
	defer dir.Close()
	list, err := dir.Readdirnames(-1)
	require.NoError(t, err)
	return list
}

func TestOverlay(t *testing.T) {
	dirs := layers(t, 2)
	for name, make := range map[string]func(Overlay) (int, error){
		"as it is": Overlay.New,
		"before Linux 6.8": func(o Overlay) (fd int, err error) {
			err = Alone(func() (err error) {
				fd, err = o.createOld(o.Lower[0])
				return err
			})
			return fd, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fd, err := make(Overlay{Lower: dirs})
			require.NoError(t, err)
			require.ElementsMatch(t, []string{"file-0", "file-1"}, names(t, fd))
			require.NoError(t, unix.Close(fd))

			own := t.TempDir()
			o := Overlay{Lower: dirs[:1], Upper: filepath.Join(own, "upper"), Work: filepath.Join(own, "work")}
			require.NoError(t, os.Mkdir(o.Upper, 0o755))
			require.NoError(t, os.Mkdir(o.Work, 0o755))
			fd, err = make(o)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/written", fd), nil, 0o600))
			require.NoError(t, unix.Close(fd))
			require.FileExists(t, filepath.Join(o.Upper, "written"))
		})
	}
}

// TestTooManyLayersForAnOldKernel checks the error before Linux 6.8, which takes all layers in one option.
func TestTooManyLayersForAnOldKernel(t *testing.T) {
	dir := layers(t, 1)[0]
	var many []string
	for range 1000 {
		many = append(many, dir)
	}
	_, err := Overlay{Lower: many}.createOld(dir)
	require.ErrorContains(t, err, "use Linux 6.8 or newer")
}

// TestAlone checks that other threads do not see mounts made in Alone, and can attach a mount that was not attached.
func TestAlone(t *testing.T) {
	dir := t.TempDir()
	fd := -1
	require.NoError(t, Alone(func() error {
		hidden, err := Tmpfs(nil)
		if err != nil {
			return err
		}
		defer unix.Close(hidden)
		if err := Attach(hidden, dir); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "hidden"), nil, 0o600); err != nil {
			return err
		}
		fd, err = Tmpfs(map[string]string{"mode": "0711"})
		return err
	}))
	defer unix.Close(fd)
	require.NoFileExists(t, filepath.Join(dir, "hidden"))
	at := filepath.Join(dir, "some", "where")
	require.NoError(t, AttachNew(fd, at))
	defer func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) }()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(at, &st))
	require.EqualValues(t, unix.TMPFS_MAGIC, st.Type)
}

// TestAttachNewFile checks that a file can be a mount's root and is attached to a file.
func TestAttachNewFile(t *testing.T) {
	dir := layers(t, 1)[0]
	fd, err := BindPath(filepath.Join(dir, "file-0"), true)
	require.NoError(t, err)
	defer unix.Close(fd)
	at := filepath.Join(t.TempDir(), "a", "b")
	require.NoError(t, AttachNew(fd, at))
	data, err := os.ReadFile(at)
	require.NoError(t, errors.Join(err, unix.Unmount(at, unix.MNT_DETACH)))
	require.Equal(t, "x", string(data))
}
