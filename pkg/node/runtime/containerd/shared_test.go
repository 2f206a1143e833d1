package containerd

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	versionservice "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// engines runs f with the built-in containerd and with a separate one.
func engines(t *testing.T, f func(t *testing.T, r *Runtime)) {
	t.Run("own", func(t *testing.T) { f(t, start(t)) })
	t.Run("host", func(t *testing.T) {
		d := newDaemon(t)
		c := testConfig(t)
		c.Address = d.socket
		f(t, startWith(t, c))
	})
}

// hostDaemon is a host's containerd.
type hostDaemon struct {
	t           *testing.T
	dir, socket string
	command     *exec.Cmd
}

func newDaemon(t *testing.T) *hostDaemon {
	if _, err := exec.LookPath("containerd"); err != nil {
		t.Skip("no containerd on the PATH to try --containerd with: `hack/deps.sh test` gets one")
	}
	dir, err := os.MkdirTemp("", testPrefix())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	d := &hostDaemon{t: t, dir: dir, socket: filepath.Join(dir, "sock")}
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = "+
		"[\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), d.socket)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600))
	d.start()
	t.Cleanup(d.kill)
	return d
}

// start starts it and waits until it serves.
func (d *hostDaemon) start() {
	d.command = exec.Command("containerd", "-c", filepath.Join(d.dir, "config.toml"))
	log, err := d.command.StderrPipe()
	require.NoError(d.t, err)
	require.NoError(d.t, d.command.Start())
	var all strings.Builder
	for lines := bufio.NewScanner(log); ; {
		require.True(d.t, lines.Scan(), "containerd did not start: %s", &all)
		fmt.Fprintln(&all, lines.Text())
		if strings.Contains(lines.Text(), "successfully booted") {
			break
		}
	}
	go func() { _, _ = bufio.NewReader(log).WriteTo(&bytes.Buffer{}) }()
}

func (d *hostDaemon) kill() {
	_ = d.command.Process.Kill()
	_ = d.command.Wait()
}

// contents lists everything that the containerd stores, by namespace.
func (d *hostDaemon) contents() (found []string) {
	c, err := client.New(d.socket)
	require.NoError(d.t, err)
	defer c.Close()
	all, err := c.NamespaceService().List(context.Background())
	require.NoError(d.t, err)
	for _, ns := range all {
		ctx := namespaces.WithNamespace(context.Background(), ns)
		found = append(found, ns)
		images, err := c.ImageService().List(ctx)
		require.NoError(d.t, err)
		for _, i := range images {
			found = append(found, ns+" image "+i.Name)
		}
		require.NoError(d.t, c.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, s snapshots.Info) error {
			found = append(found, ns+" snapshot "+s.Name)
			return nil
		}))
		leases, err := c.LeasesService().List(ctx)
		require.NoError(d.t, err)
		for _, l := range leases {
			found = append(found, ns+" lease "+l.ID)
		}
	}
	return found
}

// TestHostileImagesOfTheHostContainerd: an image that the built-in containerd refuses is also refused with the
// host's, which keeps nothing of it.
func TestHostileImagesOfTheHostContainerd(t *testing.T) {
	d := newDaemon(t)
	c := testConfig(t)
	c.Address = d.socket
	r, stop := open(t, c)
	defer stop()
	before := d.contents()
	r.engine.reserve = func(int64) int64 {
		var s unix.Statfs_t
		require.NoError(t, unix.Statfs(r.engine.root, &s))
		return int64(s.Bavail)*s.Bsize - 48<<20
	}
	h := newHostile(t)
	pull := func(tag string, write func(w *tar.Writer), layers int) error {
		packed, diff := layerOf(t, write)
		descs, diffs := []v1.Descriptor{}, []digest.Digest{}
		for range layers {
			descs, diffs = append(descs, h.blob(v1.MediaTypeImageLayerGzip, packed)), append(diffs, diff)
		}
		h.manifest(tag, v1.MediaTypeImageManifest,
			manifestOf(h.blob(v1.MediaTypeImageConfig, configOf(tag, diffs...)), descs...))
		_, err := r.Images().Pull(t.Context(), h.ref(tag), nil, runtime.PullObserver{})
		return err
	}
	file := func(size int64) func(w *tar.Writer) {
		return func(w *tar.Writer) {
			require.NoError(t, w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o755, Size: size}))
			_, err := io.CopyN(w, zeroReader{}, size)
			require.NoError(t, err)
		}
	}
	require.ErrorContains(t, pull("bomb", file(96<<20), 1), "unpacked it needs more")
	require.ErrorContains(t, pull("layers", file(1), maxLayers+1), "layers")
	require.Equal(t, before, d.contents())
	require.NoError(t, pull("good", file(1<<20), 2))
	require.NoError(t, r.Purge(t.Context()))
}

// The host's containerd may restart while containers run. Purge leaves it as it was, whatever the options are then.
func TestHostContainerd(t *testing.T) {
	d := newDaemon(t)
	theirs, err := client.New(d.socket)
	require.NoError(t, err)
	ctx := context.Background()
	their := namespaces.WithNamespace(ctx, "theirs")
	f, err := os.Open(filepath.Join(archives, "hello.tar"))
	require.NoError(t, err)
	_, err = theirs.Import(their, f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, theirs.Close())
	before := d.contents()

	c := testConfig(t)
	c.Address, c.Namespace = "unix://"+d.socket, "ours"
	r, stop := open(t, c)
	load(t, r, "busybox.tar")
	require.Regexp(t, `^containerd://\d`, r.Version())
	s := spec(c, "p", "a", "sleep", "1000")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))

	d.kill()
	exec := func() {
		code, err := r.Exec(ctx, s.ID, runtime.Exec{Command: []string{"true"}})
		require.NoError(t, err)
		require.Zero(t, code)
	}
	exec()
	second := spec(c, "p", "b", "sleep", "1000")
	require.NoError(t, r.Create(ctx, second), "its layers are known")
	require.NoError(t, r.Start(ctx, second.ID))
	_, err = r.Images().List(ctx)
	require.ErrorContains(t, err, "containerd at "+d.socket+" does not respond")
	stop()

	d.start()
	r, stop = open(t, c)
	exec()
	list, err := r.Images().List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 1)
	one, err := r.Get(ctx, second.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Running, one.State)
	stop()

	// `coracle delete` does not get the containerd's address.
	c.Address, c.patience = "", time.Second
	r, stop = open(t, c)
	d.kill()
	err = r.Purge(ctx)
	require.ErrorContains(t, err, "does not respond within 1s")
	require.ErrorContains(t, err, "hosts.json")
	left, err := r.List(ctx)
	require.NoError(t, err)
	require.Empty(t, left, "the containers go all the same")
	d.start()
	r.config.patience = time.Minute
	require.NotEqual(t, before, d.contents())
	require.NoError(t, r.Purge(ctx))
	stop()
	require.ElementsMatch(t, before, d.contents())
}

type oldVersion struct {
	versionservice.UnimplementedVersionServer
}

func (oldVersion) Version(context.Context, *emptypb.Empty) (*versionservice.VersionResponse, error) {
	return &versionservice.VersionResponse{Version: "v1.4.13"}, nil
}

// An unsupported containerd is refused with a one-line error, and nothing is recorded.
func TestHostContainerdRefused(t *testing.T) {
	c := testConfig(t)
	dir := t.TempDir()
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		require.NoError(t, err)
		return l
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	hangs := listen("hangs")
	defer hangs.Close()
	dead := listen("dead")
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	server := grpc.NewServer()
	versionservice.RegisterVersionServer(server, oldVersion{})
	served := make(chan error, 1)
	old := listen("old")
	go func() { served <- server.Serve(old) }()
	for name, want := range map[string]string{
		"none": "no containerd listens at " + dir + "/none", "file": "no containerd listens at " + dir + "/file",
		"hangs": "does not respond within 1s", "dead": "does not respond within 1s",
		"old": "is version 1.4.13: 1.6 or newer is needed",
	} {
		c.Address, c.patience = filepath.Join(dir, name), time.Second
		if name == "old" {
			c.patience = time.Minute
		}
		r, err := New(c)
		require.NoError(t, err)
		err = r.Run(t.Context())
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
	server.Stop()
	require.NoError(t, <-served)
	require.NoFileExists(t, hostsFile(c))
}
