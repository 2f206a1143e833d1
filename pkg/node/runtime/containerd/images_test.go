package containerd

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func TestPull(t *testing.T) { engines(t, pull) }

func pull(t *testing.T, r *Runtime) {
	ctx := context.Background()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/test/random"
	image, err := random.Image(10_000, 3, random.WithSource(zeros{}))
	require.NoError(t, err)
	tag, err := name.ParseReference(ref + ":v1")
	require.NoError(t, err)
	require.NoError(t, remote.Write(tag, image))

	refused := errors.New("not recorded")
	_, err = r.Images().Pull(ctx, ref+":v1", nil, runtime.PullObserver{Found: func(string) error { return refused }})
	require.ErrorIs(t, err, refused)
	_, err = r.Images().Get(ctx, ref+":v1")
	require.ErrorIs(t, err, runtime.ErrNotFound)

	var last runtime.Progress
	found := ""
	got, err := r.Images().Pull(ctx, ref+":v1", []runtime.Auth{{Username: "who", Password: "what"}}, runtime.PullObserver{
		Progress: func(p runtime.Progress) { last = p },
		Found: func(id string) error {
			_, err := r.Images().Get(ctx, id)
			require.ErrorIs(t, err, runtime.ErrNotFound)
			found = id
			return nil
		},
	})
	require.NoError(t, err)
	require.Equal(t, got.ID, found)
	require.Equal(t, []string{ref + ":v1"}, got.Names)
	require.Positive(t, last.Done)
	require.Equal(t, last.Total, last.Done)
	id, err := image.ConfigName()
	require.NoError(t, err)
	require.Equal(t, id.String(), got.ID)
	digest, err := image.Digest()
	require.NoError(t, err)
	require.Equal(t, []string{ref + "@" + digest.String()}, got.Digests)
	_, err = r.Images().Get(ctx, ref+"@"+digest.String())
	require.NoError(t, err)
	byDigest, err := r.Images().Pull(ctx, ref+"@"+digest.String(), nil, runtime.PullObserver{})
	require.NoError(t, err)
	require.Equal(t, got.ID, byDigest.ID)

	_, err = r.Images().Pull(ctx, ref+":none", nil, runtime.PullObserver{})
	require.ErrorContains(t, err, "none")
	_, err = r.Images().Pull(ctx, "UPPER//case", nil, runtime.PullObserver{})
	require.ErrorContains(t, err, "UPPER//case")

	require.NoError(t, r.Images().Remove(ctx, got.ID))
	_, err = r.Images().Get(ctx, ref+":v1")
	require.ErrorIs(t, err, runtime.ErrNotFound)
}

// zeros is a deterministic source; random makes the layers differ.
type zeros struct{}

func (zeros) Int63() int64 { return 4 }
func (zeros) Seed(int64)   {}

func size(t *testing.T, dir string) (total int64) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		total += info.Size()
		return err
	}))
	return total
}

// Removing an image frees its disk space, unless a running container uses it.
func TestRemoveImage(t *testing.T) { engines(t, removeImage) }

func removeImage(t *testing.T, r *Runtime) {
	ctx := context.Background()
	blobs, layers := filepath.Join(r.config.DataDir, "content", "blobs"), filepath.Join(r.config.DataDir, snapshotter,
		"snapshots")
	if r.config.Address != "" {
		layers = filepath.Join(r.ImageDir(), "snapshots")
		blobs = filepath.Join(filepath.Dir(r.ImageDir()), "io.containerd.content.v1.content", "blobs")
	}
	s := spec(r.config, "p", "a", "sleep", "1000")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	require.NoError(t, r.Images().Remove(ctx, "busybox:1.36"))
	_, err := r.Images().Get(ctx, "busybox")
	require.NoError(t, err, "it has another name")
	require.NoError(t, r.Images().Remove(ctx, "busybox"))
	require.Zero(t, size(t, blobs))
	var out bytes.Buffer
	_, err = r.Exec(ctx, s.ID, runtime.Exec{Command: []string{"echo", "still here"}, Streams: runtime.Streams{Out: &out}})
	require.NoError(t, err)
	require.Equal(t, "still here\n", out.String())
	used, inodes, err := r.Images().Usage(ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, used, uint64(size(t, layers)), "whole blocks")
	require.Positive(t, inodes)
	require.NoError(t, r.Remove(ctx, s.ID))
	require.NoError(t, r.RemovePod(ctx, "p", s.CgroupParent))
	require.Zero(t, size(t, layers))
	used, inodes, err = r.Images().Usage(ctx)
	require.NoError(t, err)
	require.Zero(t, used+inodes)
}

// forUs returns an image for this machine's platform.
func forUs(t *testing.T, layers int64) v1.Image {
	image, err := random.Image(1000, layers)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	config.OS, config.Architecture = "linux", goruntime.GOARCH
	image, err = mutate.ConfigFile(image, config)
	require.NoError(t, err)
	return image
}

// Docker archives, compressed archives and archives without image names can be loaded.
func TestLoad(t *testing.T) { engines(t, loads) }

func loads(t *testing.T, r *Runtime) {
	ctx := context.Background()
	image := forUs(t, 2)
	tag, err := name.NewTag("example.com/docker/style:1")
	require.NoError(t, err)
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	require.NoError(t, tarball.Write(tag, image, zip))
	require.NoError(t, zip.Close())
	got, err := r.Images().Load(ctx, &archive)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, []string{"example.com/docker/style:1"}, got[0].Names)
	require.True(t, got[0].Pinned, "nobody could fetch it again")

	nameless := forUs(t, 1)
	dir := t.TempDir()
	index, err := layout.Write(dir, empty.Index)
	require.NoError(t, err)
	require.NoError(t, index.AppendImage(nameless))
	packed, err := exec.Command("tar", "-C", dir, "-c", ".").Output()
	require.NoError(t, err)
	got, err = r.Images().Load(ctx, bytes.NewReader(packed))
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Empty(t, got[0].Names)
	_, err = r.Images().Get(ctx, got[0].ID)
	require.NoError(t, err)

	_, err = r.Images().Load(ctx, strings.NewReader("no archive"))
	require.Error(t, err)
	hello := load(t, r, "hello.tar")
	require.Equal(t, int64(65534), *hello[0].UID)
}

// A view keeps an image's layers while it exists, also after the image was removed.
func TestViewOutlivesItsImage(t *testing.T) {
	engines(t, func(t *testing.T, r *Runtime) {
		ctx := t.Context()
		img, err := r.Images().Get(ctx, "busybox")
		require.NoError(t, err)
		dirs, err := r.Images().View(ctx, "pod-v", img.ID)
		require.NoError(t, err)
		again, err := r.Images().View(ctx, "pod-v", img.ID)
		require.NoError(t, err)
		require.Equal(t, dirs, again)
		require.NoError(t, r.Images().Remove(ctx, img.ID))
		require.FileExists(t, filepath.Join(dirs[0], "bin/busybox"))
		_, err = r.Images().View(ctx, "another", img.ID)
		require.ErrorIs(t, err, runtime.ErrNotFound)
		require.NoError(t, r.Images().Unview(ctx, "pod-v"))
		require.NoError(t, r.Images().Unview(ctx, "pod-v"))
		if r.config.Address == "" {
			require.Eventually(t, func() bool {
				_, err := os.Stat(dirs[0])
				return os.IsNotExist(err)
			}, 2*time.Minute, 10*time.Millisecond)
		}
	})
}
