package commands

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

func archive(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(h.Name))
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return &out
}

// TestUnpack checks where the files of an archive are written, and that an archive cannot write elsewhere.
func TestUnpack(t *testing.T) {
	files := []tar.Header{
		{Name: "d", Typeflag: tar.TypeDir}, {Name: "d/a", Typeflag: tar.TypeReg, Mode: 0o4755},
		{Name: "da", Typeflag: tar.TypeReg},
	}
	dir := t.TempDir()
	for _, c := range []struct{ wanted, to, file, text string }{
		{"d/a", dir, "a", "d/a"}, {"d", dir, "d/a", "d/a"}, {"d", filepath.Join(dir, "new"), "new/a", "d/a"},
		{"d/a", filepath.Join(dir, "name"), "name", "d/a"}, {".", filepath.Join(dir, "all"), "all/d/a", "d/a"},
		{".", dir, "da", "da"},
	} {
		found, err := unpack(archive(t, files...), c.wanted, c.to)
		require.NoError(t, err)
		require.True(t, found)
		text, err := os.ReadFile(filepath.Join(dir, c.file))
		require.NoError(t, err, c)
		require.Equal(t, c.text, string(text), c)
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.Zero(t, info.Mode()&os.ModeSetuid)
	require.NotZero(t, info.Mode()&0o100)
	found, err := unpack(archive(t, files...), "x", dir)
	require.NoError(t, err)
	require.False(t, found)

	to := filepath.Join(t.TempDir(), "to")
	require.NoError(t, os.Mkdir(to, 0o755))
	_, err = unpack(archive(t, tar.Header{Name: "../evil", Typeflag: tar.TypeReg}), ".", to)
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(to, "..", "evil"))
	require.NoError(t, os.Symlink(filepath.Dir(to), filepath.Join(to, "link")))
	_, err = unpack(archive(t, tar.Header{Name: "link/evil", Typeflag: tar.TypeReg}), ".", to)
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(to, "..", "evil"))
	whole := archive(t, files...)
	_, err = unpack(bytes.NewReader(whole.Bytes()[:600]), ".", to)
	require.Error(t, err, "a part is not taken for the whole")
}

func TestVolumeOptions(t *testing.T) {
	for text, want := range map[string]tasks.TaskVolume{
		"/scratch": {MountPath: "/scratch", EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"data:/data:ro": {MountPath: "/data", ReadOnly: true,
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
		"/etc:/host": {MountPath: "/host", HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}},
	} {
		v, err := volume(text)
		require.NoError(t, err)
		require.Equal(t, want, v)
	}
	for _, bad := range []string{"data:", ":/x", "data:/x:rw"} {
		_, err := volume(bad)
		require.ErrorContains(t, err, bad)
	}
	_, err := (&RunOptions{Name: "a", Image: "i", After: []string{"b:maybe"}}).Task("ns")
	require.ErrorContains(t, err, "--after \"b:maybe\"")
	_, err = (&RunOptions{Name: "a", Image: "i", Parameters: []string{"X"}}).Task("ns")
	require.ErrorContains(t, err, "add --template or --schedule")
}
