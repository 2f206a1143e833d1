package containerd

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// notExecutable returns an image for an architecture, whose program /a no kernel executes.
func notExecutable(t *testing.T, arch string) v1.Image {
	packed, _ := layerOf(t, func(w *tar.Writer) {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "a", Mode: 0o755, Size: 8}))
		_, err := w.Write([]byte("\x7fELF\xff\xff\xff\xff"))
		require.NoError(t, err)
	})
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)), nil
	})
	require.NoError(t, err)
	image, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	config.OS, config.Architecture = "linux", arch
	image, err = mutate.ConfigFile(image, config)
	require.NoError(t, err)
	return image
}

func indexOf(t *testing.T, archs ...string) v1.ImageIndex {
	var index v1.ImageIndex = empty.Index
	for _, arch := range archs {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: notExecutable(t, arch), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index
}

func archiveOf(t *testing.T, index v1.ImageIndex) io.Reader {
	dir := t.TempDir()
	archive, err := layout.Write(dir, empty.Index)
	require.NoError(t, err)
	require.NoError(t, archive.AppendIndex(index,
		layout.WithAnnotations(map[string]string{"io.containerd.image.name": "docker.io/test/foreign:1"})))
	packed, err := exec.Command("tar", "-C", dir, "-c", ".").Output()
	require.NoError(t, err)
	return bytes.NewReader(packed)
}

// An image for other architectures says so: an index when it is pulled or loaded, a manifest when its program cannot be
// executed. The label alone refuses nothing, because it may be wrong.
func TestOtherArchitectures(t *testing.T) { engines(t, otherArchitectures) }

func otherArchitectures(t *testing.T, r *Runtime) {
	const want = "it is for linux/ppc64le, linux/s390x, and this machine is linux/" + goruntime.GOARCH
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repo := strings.TrimPrefix(server.URL, "http://") + "/test/foreign"
	push := func(tag string, write func(name.Reference) error) string {
		ref, err := name.ParseReference(repo + ":" + tag)
		require.NoError(t, err)
		require.NoError(t, write(ref))
		return repo + ":" + tag
	}
	pull := func(ref string) (runtime.Image, error) {
		return r.Images().Pull(t.Context(), ref, nil, runtime.PullObserver{})
	}
	index := func(archs ...string) func(name.Reference) error {
		return func(ref name.Reference) error { return remote.WriteIndex(ref, indexOf(t, archs...)) }
	}
	manifest := func(arch string) func(name.Reference) error {
		return func(ref name.Reference) error { return remote.Write(ref, notExecutable(t, arch)) }
	}

	_, err := pull(push("others", index("s390x", "ppc64le")))
	require.ErrorIs(t, err, runtime.ErrRefused)
	require.ErrorContains(t, err, want)
	both, err := pull(push("both", index("s390x", goruntime.GOARCH)))
	require.NoError(t, err)
	id, err := notExecutable(t, goruntime.GOARCH).ConfigName()
	require.NoError(t, err)
	require.Equal(t, id.String(), both.ID)

	_, err = r.Images().Load(t.Context(), archiveOf(t, indexOf(t, "s390x", "ppc64le")))
	require.ErrorContains(t, err, want)
	_, err = r.Images().Load(t.Context(), archiveOf(t, indexOf(t, "s390x", goruntime.GOARCH)))
	require.NoError(t, err)
	for arch, kept := range map[string]bool{"s390x": false, goruntime.GOARCH: true} {
		d, err := notExecutable(t, arch).Digest()
		require.NoError(t, err)
		_, err = r.engine.ContentStore().Info(r.engine.in(t.Context()), digest.Digest(d.String()))
		require.Equal(t, kept, err == nil, "%s: %v", arch, err)
	}

	for arch, message := range map[string]string{
		"s390x":          "the image is for linux/s390x, and this machine is linux/" + goruntime.GOARCH,
		goruntime.GOARCH: "",
	} {
		s := spec(r.config, "p", arch, "/a")
		s.Image = push(arch, manifest(arch))
		_, err := pull(s.Image)
		require.NoError(t, err)
		require.NoError(t, r.Create(t.Context(), s))
		require.NoError(t, r.Start(t.Context(), s.ID))
		wait(t, r, s.ID, runtime.Exited)
		got, err := r.Get(t.Context(), s.ID)
		require.NoError(t, err)
		require.Equal(t, failedExec, got.ExitCode)
		if message == "" {
			require.Empty(t, got.Message)
		} else {
			require.Contains(t, got.Message, message)
		}
	}
}

// A program may exit with the code of a failed execution.
func TestExitIsExplained(t *testing.T) {
	require.Empty(t, (&record{}).explainExit(failedExec))
	require.Empty(t, (&record{Foreign: "linux/s390x"}).explainExit(1))
	require.Contains(t, (&record{Foreign: "linux/s390x"}).explainExit(failedExec), "linux/s390x")
}

// A data directory may come from a machine with larger pages, which its database of images then has.
func TestPageSize(t *testing.T) {
	c := testConfig(t)
	require.NoError(t, os.MkdirAll(c.DataDir, 0o755))
	db, err := bolt.Open(filepath.Join(c.DataDir, "meta.db"), 0o600, &bolt.Options{PageSize: 64 << 10})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	r := startWith(t, c)
	_, err = r.Images().Get(t.Context(), "busybox")
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(c.DataDir, "meta.db"))
	require.NoError(t, err)
	require.Zero(t, info.Size()%(64<<10))
}
