package plugins

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 3 * time.Minute

// plugin is a fake plugin with a registration socket.
type plugin struct {
	registration.UnimplementedRegistrationServer
	info   *registration.PluginInfo
	hangs  bool
	status chan *registration.RegistrationStatus
	server *grpc.Server
}

func (p *plugin) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	if p.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	select {
	case p.status <- s:
	default:
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// serve starts a plugin. Its socket is removed when the server stops.
func serve(t *testing.T, path string, p *plugin) *plugin {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	p.status, p.server = make(chan *registration.RegistrationStatus, 16), grpc.NewServer()
	registration.RegisterRegistrationServer(p.server, p)
	done := make(chan error, 1)
	go func() { done <- p.server.Serve(l) }()
	t.Cleanup(func() {
		p.server.Stop()
		require.NoError(t, <-done)
	})
	return p
}

func named(name string) *plugin {
	return &plugin{info: &registration.PluginInfo{Type: "test", Name: name, SupportedVersions: []string{"1.0.0"}}}
}

// calls is a Handler that reports its calls.
type calls struct {
	made chan string
	fail error
}

func (c *calls) Validate(i Info) error {
	if i.Name == "invalid" {
		return errors.New("no such plugin is wanted")
	}
	return nil
}

func (c *calls) Register(_ context.Context, i Info) error {
	c.made <- "register " + i.Name
	if i.Name == "panics" {
		panic("injected")
	}
	return c.fail
}
func (c *calls) Deregister(i Info) { c.made <- "deregister " + i.Name }

func (c *calls) next(t *testing.T) string {
	t.Helper()
	select {
	case s := <-c.made:
		return s
	case <-time.After(patience):
		t.Fatal("the handler was not called")
		return ""
	}
}

// watch runs a Watcher on a directory, which prepare may fill first.
func watch(t *testing.T, prepare func(registry string)) (Dir, *calls) {
	t.Helper()
	dir, err := os.MkdirTemp("", "plug") // short, since paths of sockets are limited
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	d, err := Open(filepath.Join(dir, "k"), "")
	require.NoError(t, err)
	if prepare != nil {
		prepare(filepath.Join(d.root, registryName))
	}
	c := &calls{made: make(chan string, 100)}
	w := New(Config{Dir: d, Handlers: map[string]Handler{"test": c}, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return d, c
}

func TestPluginsComeAndGo(t *testing.T) {
	d, c := watch(t, func(registry string) {
		serve(t, filepath.Join(registry, "early.sock"), named("early"))
		serve(t, filepath.Join(registry, ".hidden.sock"), named("hidden"))
	})
	require.Equal(t, "register early", c.next(t))
	registry := filepath.Join(d.root, registryName)
	p := serve(t, filepath.Join(registry, "sub/late.sock"), named("late"))
	require.Equal(t, "register late", c.next(t))
	require.True(t, (<-p.status).PluginRegistered)

	p.server.Stop()
	require.Equal(t, "deregister late", c.next(t))
	serve(t, filepath.Join(registry, "sub/late.sock"), named("again"))
	require.Equal(t, "register again", c.next(t))

	// Another plugin replaces the socket.
	serve(t, filepath.Join(registry, "other"), named("other"))
	require.Equal(t, "register other", c.next(t))
	require.NoError(t, os.Rename(filepath.Join(registry, "other"), filepath.Join(registry, "early.sock")))
	got := []string{c.next(t), c.next(t), c.next(t)}
	require.ElementsMatch(t, []string{"deregister early", "deregister other", "register other"}, got)
}

func TestRefusedPlugins(t *testing.T) {
	outside := named("outside")
	outside.info.Endpoint = "/run/containerd/containerd.sock"
	above := named("above")
	above.info.Endpoint = "/../x.sock"
	other := named("other")
	other.info.Type = "DRAPlugin"
	long := named(strings.Repeat("x", maxName+1))
	for want, p := range map[string]*plugin{
		`socket "/run/containerd/containerd.sock" is not below`: outside,
		"is not below": above,
		"RegisterPlugin error -- no handler registered for plugin type: DRAPlugin": other,
		"empty or too long": long,
		"RegisterPlugin error -- plugin validation failed with err: no such plugin is wanted": named("invalid"),
		"RegisterPlugin error -- plugin registration failed with err: panic: injected":        named("panics"),
	} {
		t.Run(want, func(t *testing.T) {
			d, _ := watch(t, nil)
			serve(t, filepath.Join(d.root, registryName, "p.sock"), p)
			select {
			case s := <-p.status:
				require.False(t, s.PluginRegistered)
				require.Contains(t, s.Error, want)
			case <-time.After(patience):
				t.Fatal("the plugin was not told")
			}
		})
	}
}

// A plugin that hangs, a plugin with too large a response, and a link to another socket do not affect other plugins.
func TestHostilePlugins(t *testing.T) {
	much := named("much")
	much.info.SupportedVersions = []string{strings.Repeat("x", 2*maxMessage)}
	victim := filepath.Join(t.TempDir(), "s")
	hang := named("hangs")
	hang.hangs = true
	outside := serve(t, victim, named("victim"))
	d, c := watch(t, func(registry string) {
		serve(t, filepath.Join(registry, "0.sock"), hang)
		serve(t, filepath.Join(registry, "1.sock"), much)
		require.NoError(t, os.Symlink(victim, filepath.Join(registry, "2.sock")))
		require.NoError(t, os.Symlink(filepath.Dir(victim), filepath.Join(registry, "dir")))
		require.NoError(t, os.WriteFile(filepath.Join(registry, "file.sock"), nil, 0o600))
	})
	serve(t, filepath.Join(d.root, registryName, "good.sock"), named("good"))
	require.Equal(t, "register good", c.next(t))
	require.Empty(t, outside.status)
	require.Empty(t, c.made)
	_, err := d.connect(t.Context(), filepath.Join(registryName, "2.sock"))
	require.ErrorContains(t, err, "socket operation on non-socket")
	_, err = d.connect(t.Context(), filepath.Join(registryName, "dir/s"))
	require.ErrorContains(t, err, "too many levels of symbolic links")
	_, err = d.connect(t.Context(), filepath.Join(registryName, "file.sock"))
	require.ErrorContains(t, err, "socket operation on non-socket")
}

func TestTheLinkIsForOneCluster(t *testing.T) {
	dir := t.TempDir()
	link, one, two := filepath.Join(dir, "lib/kubelet"), filepath.Join(dir, "one"), filepath.Join(dir, "two")
	a, err := Open(one, link)
	require.NoError(t, err)
	require.Equal(t, link+"/pods/x", a.Path("pods", "x"))
	b, err := Open(two, link)
	require.NoError(t, err)
	require.Equal(t, two+"/pods", b.Path("pods"), "another cluster has it")
	require.NoError(t, Close(two, link))
	require.DirExists(t, link+"/pods")
	rel, err := a.relative(link + "/plugins/d/csi.sock")
	require.NoError(t, err)
	require.Equal(t, "plugins/d/csi.sock", rel)
	_, err = b.relative(link + "/plugins/d/csi.sock")
	require.ErrorContains(t, err, "is not below")

	require.NoError(t, os.RemoveAll(one)) // the user removed the cluster's directory
	b, err = Open(two, link)
	require.NoError(t, err)
	require.Equal(t, link, b.Path())
	require.NoError(t, Close(two, link))
	require.NoFileExists(t, link)

	require.NoError(t, os.Mkdir(link, 0o755)) // as a kubelet's directory
	b, err = Open(two, link)
	require.NoError(t, err)
	require.Equal(t, two, b.Path())
	require.NoError(t, Close(two, link))
	require.DirExists(t, link)
}

func TestHasSockets(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(filepath.Join(dir, "data"), filepath.Join(dir, "kubelet"))
	require.NoError(t, err)
	for path, want := range map[string]bool{
		"data/plugins": true, "data/plugins/driver": true, "kubelet/plugins_registry/": true, "kubelet/device-plugins": true,
		"data/pods": false, "kubelet": false, "data/plugins2": false, "data/plugins/../pods": false,
	} {
		require.Equal(t, want, d.HasSockets(dir+"/"+path), path)
	}
}
