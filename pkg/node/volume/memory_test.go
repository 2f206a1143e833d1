package volume

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func sizeOf(t *testing.T, path string) (bytes, inodes int64) {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &st))
	return int64(st.Blocks) * st.Bsize, int64(st.Files)
}

// A memory-backed emptyDir is limited by the node (1 GiB here), the pod and its own sizeLimit.
func TestMemorySize(t *testing.T) {
	m, _ := manager(t)
	limited := func(texts ...string) []corev1.Container {
		var all []corev1.Container
		for _, text := range texts {
			c := corev1.Container{}
			if text != "" {
				c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(text)}
			}
			all = append(all, c)
		}
		return all
	}
	for i, tt := range []struct {
		init, containers []corev1.Container
		volume, want     string
	}{
		{containers: limited(""), want: "1Gi"},
		{containers: limited(""), volume: "8Mi", want: "8Mi"},
		{containers: limited(""), volume: "8Gi", want: "1Gi"},
		{containers: limited("64Mi"), want: "64Mi"},
		{containers: limited("64Mi", "32Mi"), want: "96Mi"},
		{containers: limited("64Mi", ""), want: "1Gi"},
		{containers: limited("64Mi"), init: limited(""), want: "1Gi"},
		{containers: limited("64Mi"), init: limited("128Mi"), want: "128Mi"},
		{containers: limited("64Mi"), volume: "8Mi", want: "8Mi"},
		{containers: limited("64Mi"), volume: "80Mi", want: "64Mi"},
		{containers: limited("4Gi"), want: "1Gi"},
	} {
		v := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
		if tt.volume != "" {
			q := resource.MustParse(tt.volume)
			v.SizeLimit = &q
		}
		p := podWith(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: v}})
		p.Spec.InitContainers, p.Spec.Containers = tt.init, tt.containers
		want := resource.MustParse(tt.want)
		require.Equal(t, want.Value(), emptyDir{allocatable: m.c.Allocatable}.memorySize(p, v), i)
	}
	p := podWith(corev1.Volume{
		Name:         "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
	})
	p.Spec.Containers = limited("16Mi")
	r, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	size, _ := sizeOf(t, r.Volumes["v"].Path)
	require.EqualValues(t, 16<<20, size)
}

func TestObjectsInMemoryAreBounded(t *testing.T) {
	many := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "many"}, Data: map[string]string{}}
	for i := range 10000 { // about 100 KB as an object, 80 MB as files
		many.Data[fmt.Sprint(i)] = "x"
	}
	large := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "large"},
		Data:       map[string][]byte{"k": []byte(strings.Repeat("x", 1<<20))},
	}
	m, _ := manager(t, many, large)
	size, inodes := sizeOf(t, m.c.MemoryDir)
	require.EqualValues(t, leastObjects, size)
	require.Less(t, inodes, int64(100_000))

	_, err := m.Setup(t.Context(),
		podWith(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "many"}}}}), "")
	require.ErrorContains(t, err, "more than 64 MiB")
	left, err := os.ReadDir(m.c.MemoryDir)
	require.NoError(t, err)
	require.Empty(t, left)

	var volumes []corev1.Volume
	for i := range 70 {
		volumes = append(volumes, corev1.Volume{
			Name: fmt.Sprint(i), VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "large"}},
		})
	}
	projected := &corev1.ProjectedVolumeSource{}
	for i := range 1000 { // a pod has room for 20,000
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: "large"},
			Items:                []corev1.KeyToPath{{Key: "k", Path: fmt.Sprint(i)}},
		}})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = m.Setup(t.Context(), podWith(corev1.Volume{
		Name: "v", VolumeSource: corev1.VolumeSource{Projected: projected},
	}), "")
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "more than 64 MiB")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30))

	r, err := m.Setup(t.Context(), podWith(volumes...), "")
	require.ErrorContains(t, err, `volume "69"`)
	require.NotContains(t, err.Error(), `volume "60"`)
	require.Len(t, r.Volumes, 63)
	_, err = m.Setup(t.Context(), podWith(volumes[:60]...), "")
	require.NoError(t, err)
	require.NoError(t, m.Start(), "again, while it is in use")
}

// A pod that references thousands of objects has not more than maxWatched watches. Its volumes are read again.
func TestWatchesOfAPodAreBounded(t *testing.T) {
	m, _ := manager(t)
	p := podWith(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "first"}, Optional: new(true),
	}}})
	p.Spec.Containers = []corev1.Container{{}}
	for i := range 2 * maxWatched {
		p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
			SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprint(i)}},
		})
	}
	for range 2 {
		r, err := m.Setup(t.Context(), p, "")
		require.NoError(t, err)
		require.False(t, r.Refresh.IsZero())
		require.Len(t, m.objects.entries, maxWatched)
		require.Contains(t, m.objects.entries, Reference{Namespace: "default", Name: "first"})
	}
}

// Each file takes whole pages, which are larger than 4 KiB on some machines.
func TestMemoryOfFiles(t *testing.T) {
	files := map[string]File{"a": {Data: make([]byte, 1)}, "b": {Data: make([]byte, 4097)}, "empty": {}}
	require.EqualValues(t, 3*fileCost+4096+8192, memoryOf(files, 4096))
	require.EqualValues(t, 3*fileCost+2*65536, memoryOf(files, 65536))
}
