package volume

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of volumes mount file systems: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

type uncached struct{ ctrl.WithWatch }

func (uncached) Cache() ctrlcache.Cache { panic("not used") }

// manager returns a Manager for an API with the given objects; tokens are numbered from 1.
func manager(t *testing.T, objects ...ctrl.Object) (*Manager, ctrl.Client) {
	t.Helper()
	issued := 0
	c := fake.NewClientBuilder().
		WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ ctrl.Client, _ string, _ ctrl.Object, r ctrl.Object,
			_ ...ctrl.SubResourceCreateOption) error {
			issued++
			r.(*authv1.TokenRequest).Status = authv1.TokenRequestStatus{Token: fmt.Sprint("token-", issued),
				ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}
			return nil
		},
	}).Build()
	dir := t.TempDir()
	m := New(Config{
		Client: uncached{c}, Dir: filepath.Join(dir, "pods"), MemoryDir: filepath.Join(dir, "memory"), HostIP: "192.0.2.1",
		Images: testImages(t), Changed: func(types.UID) {}, Allocatable: func() corev1.ResourceList {
			return corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("1Gi"),
			}
		}, Logger: slog.Default(),
	})
	require.NoError(t, m.Start())
	t.Cleanup(func() {
		require.NoError(t, m.Teardown(context.Background(), "u", true))
		require.NoError(t, m.Close())
	})
	return m, c
}

func podWith(v ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "p",
			UID:       "u",
			Labels:    map[string]string{"b": "2", "a": `x"y`},
		},
		Spec: corev1.PodSpec{Volumes: v, Containers: []corev1.Container{{Name: "c"}}},
	}
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(parts...))
	require.NoError(t, err)
	return string(b)
}

func TestProjected(t *testing.T) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}, Data: map[string]string{"k": "v", "other": "x"},
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Data: map[string][]byte{"pw": []byte("hush")},
	}
	m, c := manager(t, cm, secret)
	mode, yes := int32(0o400), true
	p := podWith(corev1.Volume{
		Name: "all",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{
				ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
					Items:                []corev1.KeyToPath{{Key: "k", Path: "deep/er/k", Mode: &mode}},
				},
			},
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
			{
				Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: &yes},
			},
			{
				DownwardAPI: &corev1.DownwardAPIProjection{
					Items: []corev1.DownwardAPIVolumeFile{
						{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
					},
				},
			},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		}}},
	})
	r, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	dir := r.Volumes["all"].Path
	require.Equal(t, "v", read(t, dir, "deep/er/k"))
	info, err := os.Stat(filepath.Join(dir, "deep/er/k"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o400), info.Mode())
	require.Equal(t, "hush", read(t, dir, "pw"))
	require.Equal(t, "a=\"x\\\"y\"\nb=\"2\"", read(t, dir, "labels"))
	require.Equal(t, "token-1", read(t, dir, "token"))
	require.WithinDuration(t, time.Now().Add(48*time.Minute), r.Refresh, time.Minute, "four fifths of an hour")

	before, err := os.Readlink(filepath.Join(dir, dataLink))
	require.NoError(t, err)
	_, err = m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	after, err := os.Readlink(filepath.Join(dir, dataLink))
	require.NoError(t, err)
	require.Equal(t, before, after, "nothing changed, nothing is written")

	secret.Data = map[string][]byte{"new": []byte("n")}
	require.NoError(t, c.Update(t.Context(), secret))
	_, err = m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	require.Equal(t, "n", read(t, dir, "new"))
	require.NoFileExists(t, filepath.Join(dir, "pw"))
}

func TestRefusals(t *testing.T) {
	m, _ := manager(t)
	file := corev1.HostPathFile
	for want, v := range map[string]corev1.VolumeSource{
		"not supported": {NFS: &corev1.NFSVolumeSource{}},
		`configmaps "none" not found`: {
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}},
		},
		"/etc is not a file":             {HostPath: &corev1.HostPathVolumeSource{Path: "/etc", Type: &file}},
		`medium "HugePages" is not supp`: {EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages"}},
	} {
		_, err := m.Setup(t.Context(), podWith(corev1.Volume{Name: "v", VolumeSource: v}), "")
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `volume "v"`)
	}
}

func TestEmptyDirKeepsItsContentAndGroup(t *testing.T) {
	m, _ := manager(t)
	limit := resource.MustParse("1Mi")
	p := podWith(corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{
			Name:         "mem",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory", SizeLimit: &limit}},
		})
	group := int64(4242)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	for range 2 {
		r, err := m.Setup(t.Context(), p, "")
		require.NoError(t, err)
		for _, name := range []string{"disk", "mem"} {
			info, err := os.Stat(r.Volumes[name].Path)
			require.NoError(t, err)
			require.Equal(t, fs.ModeDir|fs.ModeSetgid|0o777, info.Mode())
			f, err := os.OpenFile(filepath.Join(r.Volumes[name].Path, "f"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			require.NoError(t, err)
			_, err = f.WriteString("x")
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	require.Equal(t, "xx", read(t, m.PodDir("u"), "volumes", "mem", "f"))
	require.NoError(t, m.Teardown(context.Background(), "u", true))
	require.NoDirExists(t, m.PodDir("u"))
}

func TestSubPathStaysInside(t *testing.T) {
	m, _ := manager(t)
	r, err := m.Setup(t.Context(),
		podWith(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}), "")
	require.NoError(t, err)
	root := r.Volumes["v"].Path
	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "abs")))
	require.NoError(t, os.Symlink("../../..", filepath.Join(root, "up")))
	require.NoError(t, os.Mkdir(filepath.Join(root, "real"), 0o755))
	require.NoError(t, os.Symlink("real", filepath.Join(root, "in")))
	for _, bad := range []string{"abs", "abs/x", "up", "up/x", "../x", "/etc"} {
		_, err := m.SubPath("u", "v", root, bad, "c", 0, false)
		require.Error(t, err, bad)
	}
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left, "nothing was made outside")
	for i, good := range []string{"in", "new/deep", "in/sub"} {
		at, err := m.SubPath("u", "v", root, good, "c", i, false)
		require.NoError(t, err, good)
		require.NoError(t, os.WriteFile(filepath.Join(at, "mark"), []byte(good), 0o600))
		require.Equal(t, good, read(t, root, good, "mark"))
		_, err = m.SubPath("u", "v", root, good, "c", i, false)
		require.NoError(t, err, "again")
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "file"), []byte("text"), 0o600))
	at, err := m.SubPath("u", "v", root, "file", "c", 9, false)
	require.NoError(t, err)
	require.Equal(t, "text", read(t, at))
}

func TestTokenIsRenewed(t *testing.T) {
	m, _ := manager(t)
	synctest.Test(t, func(t *testing.T) {
		p := podWith(corev1.Volume{
			Name: "t",
			VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}},
		})
		r, err := m.Setup(t.Context(), p, "")
		require.NoError(t, err)
		time.Sleep(time.Until(r.Refresh) - time.Second)
		_, err = m.Setup(t.Context(), p, "")
		require.NoError(t, err)
		require.Equal(t, "token-1", read(t, r.Volumes["t"].Path, "token"))
		time.Sleep(time.Second)
		_, err = m.Setup(t.Context(), p, "")
		require.NoError(t, err)
		require.Equal(t, "token-2", read(t, r.Volumes["t"].Path, "token"))
	})
}

func TestResource(t *testing.T) {
	p := podWith()
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Limits:   corev1.ResourceList{"memory": resource.MustParse("64Mi")},
		Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")}}
	alloc := corev1.ResourceList{"cpu": resource.MustParse("4")}
	for _, tt := range []struct{ res, div, want string }{
		{"limits.memory", "1Mi", "64"}, {"limits.memory", "0", "67108864"}, {"requests.cpu", "1m", "250"},
		{"requests.cpu", "1", "1"},
		{"limits.cpu", "1", "4"}, {"requests.memory", "1Mi", "64"},
	} {
		got, err := Resource(p, &corev1.ResourceFieldSelector{Resource: tt.res, Divisor: resource.MustParse(tt.div)}, "c",
			alloc)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, tt.res+"/"+tt.div)
	}
}

// After a write, a volume shows exactly the new files, whatever it showed before.
func TestWriteAtomic(t *testing.T) {
	top := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(top, "v")
		require.NoError(t, err)
		names := rapid.SampledFrom([]string{"a", "b", "d/a", "d/b", "d/e/f", "g"})
		for range 3 {
			files := map[string]File{}
			for n, text := range rapid.MapOf(names, rapid.StringN(0, 10, -1)).Draw(t, "files") {
				files[n] = File{Data: []byte(text), Mode: 0o644}
			}
			require.NoError(t, WriteAtomic(dir, files, nil))
			got := map[string]string{}
			data, err := filepath.EvalSymlinks(filepath.Join(dir, dataLink))
			require.NoError(t, err)
			require.NoError(t, filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					name := strings.TrimPrefix(path, data+"/")
					b, err := os.ReadFile(filepath.Join(dir, name)) // the path that containers use
					require.NoError(t, err)
					got[name] = string(b)
				}
				return err
			}))
			require.Len(t, got, len(files))
			for n, f := range files {
				require.Equal(t, string(f.Data), got[n])
			}
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			hidden := 0
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), "..") {
					hidden++
				}
			}
			require.Equal(t, 2, hidden, "the link and one directory")
		}
	})
	require.Error(t, WriteAtomic(top, map[string]File{"../x": {}}, nil))
}

func BenchmarkWriteAtomicUnchanged(b *testing.B) {
	dir := b.TempDir()
	files := map[string]File{
		"token":     {Data: make([]byte, 1000), Mode: 0o644},
		"ca.crt":    {Data: make([]byte, 600), Mode: 0o644},
		"namespace": {Data: []byte("default"), Mode: 0o644},
	}
	for b.Loop() {
		if err := WriteAtomic(dir, files, nil); err != nil {
			b.Fatal(err)
		}
	}
}
