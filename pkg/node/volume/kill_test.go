package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(data)) {
		if at := strings.Fields(line)[4]; at == dir || strings.HasPrefix(at, dir+"/") {
			out = append(out, at)
		}
	}
	return out
}

// everyKind returns a pod with each kind of volume that acquires something.
func everyKind() *corev1.Pod {
	limit := resource.MustParse("1Mi")
	p := podWith(
		corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{
			Name:         "memory",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory", SizeLimit: &limit}},
		},
		corev1.Volume{
			Name: "config",
			VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
			},
		},
		corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}},
		corev1.Volume{Name: "files", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "two"}}},
	)
	group := int64(4242)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	return p
}

// start sets up the volumes as the start of a pod with containers does.
func start(m *Manager) error {
	r, err := startWith(m, everyKind())
	if err != nil {
		return err
	}
	if err := m.MountImage(context.Background(), "u", "files", "two", ""); err != nil {
		return err
	}
	_, err = m.SubPath("u", "files", r.Volumes["files"].Path, "dir", "c", 2, true)
	return err
}

func startWith(m *Manager, p *corev1.Pod) (Ready, error) {
	r, err := m.Setup(context.Background(), p, "")
	if err != nil {
		return r, err
	}
	for i, name := range []string{"disk", "memory"} {
		at, err := m.SubPath("u", name, r.Volumes[name].Path, "a/b", "c", i, false)
		if err != nil {
			return r, err
		}
		if err := os.WriteFile(filepath.Join(at, "file"), []byte(name), 0o600); err != nil {
			return r, err
		}
	}
	return r, nil
}

type killed struct{}

// survive runs f until it returns or is killed.
func survive(f func() error) (err error) {
	defer func() {
		if r := recover(); r == (killed{}) {
			err = errors.New("killed")
		} else if r != nil {
			panic(r)
		}
	}()
	return f()
}

// Wherever an agent is killed, or an acquisition fails, the next agent sets up and tears down the volumes completely.
func TestKilledAtEachPoint(t *testing.T) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}, Data: map[string]string{"k": "v"},
	}
	life := func(m *Manager) error {
		if err := start(m); err != nil {
			return err
		}
		return m.Teardown(context.Background(), "u", true)
	}
	first, _ := manager(t, cm)
	var points []string
	first.setFailpoints(func(p string) error { points = append(points, p); return nil })
	require.NoError(t, life(first))
	require.Greater(t, len(points), 15)
	for at, point := range points {
		for _, how := range []string{"killed", "failed"} {
			for _, then := range []string{"started again", "torn down"} {
				t.Run(fmt.Sprintf("%s %s at %d %s", then, how, at, point), func(t *testing.T) {
					m, _ := manager(t, cm)
					n := 0
					m.setFailpoints(func(string) error {
						if n++; n-1 != at {
							return nil
						}
						if how == "killed" {
							panic(killed{})
						}
						return errors.New("injected")
					})
					require.Error(t, survive(func() error { return life(m) }))
					next := New(m.c)
					next.setFailpoints(nil)
					require.NoError(t, next.Start())
					if then == "started again" {
						require.NoError(t, start(next))
						for _, name := range []string{"disk", "memory"} {
							info, err := os.Stat(filepath.Join(next.PodDir("u"), "volumes", name))
							require.NoError(t, err)
							require.Equal(t, os.ModeDir|os.ModeSetgid|0o777, info.Mode(), name)
							require.Equal(t, name, read(t, next.PodDir("u"), "volumes", name, "a/b/file"))
						}
						size, _ := sizeOf(t, filepath.Join(next.PodDir("u"), "volumes/memory"))
						require.EqualValues(t, 1<<20, size)
						require.Equal(t, "v", read(t, next.c.MemoryDir, "u/config/k"))
						require.Equal(t, "upper", read(t, next.PodDir("u"), "volumes/files/dir/file"))
					}
					require.NoError(t, next.Teardown(t.Context(), "u", true))
					left, err := next.List()
					require.NoError(t, err)
					require.Empty(t, left)
					require.Empty(t, mountsBelow(t, next.c.Dir))
					require.Empty(t, next.c.Images.(*heldLayers).held)
				})
			}
		}
	}
}

// setFailpoints replaces the hook that New gave to the plugins.
func (m *Manager) setFailpoints(f func(string) error) {
	m.c.Failpoints = f
	m.plugins, m.records = New(m.c).plugins, map[types.UID]*podRecord{}
}

// Teardown removes what a container made in its volume, but not the targets of its links.
func TestTeardownFollowsNoLink(t *testing.T) {
	m, _ := manager(t)
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), nil, 0o600))
	p := podWith(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "m", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}}})
	r, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(outside, filepath.Join(r.Volumes["v"].Path, "link")))
	_, err = m.SubPath("u", "v", r.Volumes["v"].Path, "sub", "c", 0, false)
	require.NoError(t, err)

	// Even if the container could replace the mount points by links to a mount of the host.
	require.NoError(t, unix.Mount("tmpfs", outside, "tmpfs", 0, ""))
	defer func() { require.NoError(t, unix.Unmount(outside, 0)) }()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), nil, 0o600))
	bind := filepath.Join(m.PodDir("u"), "subpaths/v/c/0")
	for _, at := range []string{r.Volumes["m"].Path, bind} {
		require.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
		require.NoError(t, os.Remove(at))
		require.NoError(t, os.Symlink(outside, at))
	}
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	require.FileExists(t, filepath.Join(outside, "file"))
	require.NoDirExists(t, m.PodDir("u"))
}

// Teardown neither detaches nor empties a mount that Setup did not make, wherever in the pod's directory it is.
func TestForeignMounts(t *testing.T) {
	for _, at := range []string{
		"volumes/disk", "volumes/disk/below", "volumes/memory", "subpaths/disk/c/0", "containers",
	} {
		t.Run(at, func(t *testing.T) {
			m, _ := manager(t)
			r, err := m.Setup(t.Context(), podWith(everyKind().Spec.Volumes[:2]...), "")
			require.NoError(t, err)
			_, err = m.SubPath("u", "disk", r.Volumes["disk"].Path, "sub", "c", 0, false)
			require.NoError(t, err)
			foreign := filepath.Join(m.PodDir("u"), at)
			require.NoError(t, os.MkdirAll(foreign, 0o755))
			require.NoError(t, unix.Mount("tmpfs", foreign, "tmpfs", 0, ""))
			require.NoError(t, os.WriteFile(filepath.Join(foreign, "file"), nil, 0o600))
			for _, m := range []*Manager{m, New(m.c)} {
				err = m.Teardown(t.Context(), "u", true)
				require.ErrorContains(t, err, "mount")
				require.ErrorContains(t, err, filepath.Base(foreign), "it says where")
				require.FileExists(t, filepath.Join(foreign, "file"))
			}
			require.NoError(t, unix.Unmount(foreign, 0))
			require.NoError(t, New(m.c).Teardown(t.Context(), "u", true))
			require.NoDirExists(t, m.PodDir("u"))
		})
	}
}

// Most machines share all mounts: detaching a copy of a directory must not detach the mounts in the original.
func TestSubPathLeavesMountsOfTheHost(t *testing.T) {
	m, _ := manager(t)
	host := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", host, "tmpfs", 0, ""))
	defer func() { require.NoError(t, unix.Unmount(host, unix.MNT_DETACH)) }()
	require.NoError(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	below := filepath.Join(host, "dir/below")
	require.NoError(t, os.MkdirAll(below, 0o755))
	require.NoError(t, unix.Mount("tmpfs", below, "tmpfs", 0, ""))
	require.NoError(t, os.WriteFile(filepath.Join(below, "file"), []byte("text"), 0o600))

	p := podWith(corev1.Volume{
		Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}},
	})
	r, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	at, err := m.SubPath("u", "v", r.Volumes["v"].Path, "dir", "c", 0, false)
	require.NoError(t, err)
	require.Equal(t, "text", read(t, at, "below/file"))
	require.NoError(t, m.Teardown(t.Context(), "u", true))
	require.Empty(t, mountsBelow(t, m.PodDir("u")))
	require.Equal(t, "text", read(t, below, "file"))
}

// Pods set up by an agent that predates records are torn down, too.
func TestAdopt(t *testing.T) {
	m, _ := manager(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}})
	p := everyKind()
	p.Spec.Volumes = p.Spec.Volumes[:4] // the volumes supported then
	_, err := startWith(m, p)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(m.PodDir("u"), recordFile)))
	next := New(m.c)
	require.NoError(t, next.Teardown(t.Context(), "u", true))
	require.Empty(t, mountsBelow(t, m.PodDir("u")))
	require.NoDirExists(t, m.PodDir("u"))
}

// attacher is a plugin for network disks: its Teardown needs data that Setup learned.
type attacher struct {
	Plugin
	attached map[string]bool
	fail     bool
}

func (*attacher) Name() string { return "test/attacher" }

func (*attacher) CanSupport(s *corev1.VolumeSource) bool { return s.NFS != nil }

func (a *attacher) Setup(_ context.Context, p Pod, v *Volume) (Mounted, error) {
	if err := v.Save("device of " + p.Source.NFS.Server); err != nil {
		return Mounted{}, err
	}
	a.attached[string(v.State)] = true
	if a.fail {
		return Mounted{}, errors.New("cannot attach")
	}
	return Mounted{Path: v.Dir}, nil
}

func (a *attacher) Teardown(_ context.Context, v *Volume) error {
	if string(v.State) != `"device of s"` {
		return fmt.Errorf("no such device: %s", v.State)
	}
	delete(a.attached, string(v.State))
	return nil
}

// A plugin gets its saved state back after a restart and after a failed Setup.
func TestPluginState(t *testing.T) {
	for _, fail := range []bool{false, true} {
		m, _ := manager(t)
		plugin := &attacher{attached: map[string]bool{}, fail: fail}
		m.plugins = append(m.plugins, plugin)
		p := podWith(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s"}}})
		_, err := m.Setup(t.Context(), p, "")
		require.Equal(t, fail, err != nil)
		require.Len(t, plugin.attached, 1)

		without := New(m.c)
		require.ErrorContains(t, without.Teardown(t.Context(), "u", true),
			`volume "v" : no volume plugin is named "test/attacher"`)
		next := New(m.c)
		next.plugins = append(next.plugins, plugin)
		require.NoError(t, next.Teardown(t.Context(), "u", true))
		require.Empty(t, plugin.attached)
		require.NoDirExists(t, m.PodDir("u"))
	}
}

// The next write removes what a killed one left in a volume.
func TestWriteAtomicSweeps(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "..data-123"), 0o700))
	require.NoError(t, WriteAtomic(dir, map[string]File{"a": {Data: []byte("1")}}, nil))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "the file, the link and one directory")
}
