// Package plugins finds plugins of a node, such as CSI drivers, by their sockets in a directory, like the kubelet's
// plugin watcher (pluginregistration/v1).
//
// Invariants: a handler's Register and Deregister alternate for each socket, even if sockets are replaced. A plugin
// that hangs or misbehaves affects only itself: its calls have deadlines, its messages are bounded, and its socket
// is never reached through a symbolic link or outside the directory.
package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

const (
	maxSockets = 256 // more are ignored
	maxDepth   = 3   // of directories in the registry
	maxMessage = 64 << 10
	// Limits on a plugin's Info.
	maxName     = 253 // bytes; also for the type
	maxEndpoint = 4096
	maxVersions = 32

	infoTimeout   = 5 * time.Second
	notifyTimeout = 5 * time.Second
	retryFirst    = 500 * time.Millisecond
	retryMax      = 2 * time.Minute
)

// Info is a plugin's description of itself. Endpoint is the path of its socket, below the Dir.
type Info struct {
	Type, Name, Endpoint string
	Versions             []string
}

// Handler handles plugins of one type. Its methods may be called concurrently for different plugins.
type Handler interface {
	// Validate returns why a plugin cannot be registered, or nil.
	Validate(Info) error
	// Register begins to use a plugin; after a failure it is called again. Deregister is called when the socket is
	// gone.
	Register(context.Context, Info) error
	Deregister(Info)
}

// Config configures a Watcher.
type Config struct {
	Dir Dir
	// Handlers by type of plugin, such as registration.CSIPlugin.
	Handlers map[string]Handler
	Logger   *slog.Logger
}

// Watcher registers plugins.
type Watcher struct {
	c     Config
	guard run.Guard

	wg      sync.WaitGroup
	sockets map[string]*socket // by path relative to the Dir; owned by Run
}

type socket struct {
	id     uint64
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a Watcher. Run starts it.
func New(c Config) *Watcher {
	return &Watcher{c: c, guard: run.Guard{Log: c.Logger, Component: "plugins"}, sockets: map[string]*socket{}}
}

// Run registers existing and new plugins until ctx is done. It does not deregister plugins when it ends.
func (w *Watcher) Run(ctx context.Context) error {
	events, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		return fmt.Errorf("watch plugins: %w", err)
	}
	defer w.wg.Wait()
	defer events.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	root := filepath.Join(w.c.Dir.root, registryName)
	if err := w.scan(ctx, events, root); err != nil {
		return fmt.Errorf("watch plugins: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events.Events:
			switch {
			case e.Has(fsnotify.Create):
				err = w.scan(ctx, events, e.Name)
			case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
				w.removed(e.Name)
			}
		case err = <-events.Errors: // events were lost
			w.c.Logger.Warn("events of the plugin directory were lost, reading it again", "error", err)
			w.sweep()
			err = w.scan(ctx, events, root)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.c.Logger.Warn("could not read plugin directory", "error", err)
		}
		err = nil
	}
}

// scan watches a directory and scans its entries, or adds the socket at path.
func (w *Watcher) scan(ctx context.Context, events *fsnotify.Watcher, path string) error {
	root := filepath.Join(w.c.Dir.root, registryName)
	rel, err := filepath.Rel(root, path)
	if err != nil || strings.HasPrefix(filepath.Base(path), ".") && path != root {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket != 0 {
		w.added(ctx, filepath.Join(registryName, rel))
		return nil
	}
	if !info.IsDir() || strings.Count(rel, "/")+1 > maxDepth || len(events.WatchList()) >= maxSockets {
		return nil
	}
	if err := events.Add(path); err != nil {
		return err
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(4 * maxSockets)
	if err != nil && len(names) == 0 {
		return nil // an empty directory
	}
	var errs []error
	for _, name := range names {
		if err := w.scan(ctx, events, filepath.Join(path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// added starts the registration of a new or replaced socket.
func (w *Watcher) added(ctx context.Context, rel string) {
	id, ok := w.c.Dir.socketAt(rel)
	if !ok {
		return
	}
	old := w.sockets[rel]
	if old != nil && old.id == id {
		return
	}
	if old == nil && len(w.sockets) >= maxSockets {
		w.c.Logger.Warn("too many plugin sockets, ignoring one", "socket", rel, "limit", maxSockets)
		return
	}
	if old != nil {
		old.cancel()
	}
	s := &socket{id: id, done: make(chan struct{})}
	own, cancel := context.WithCancelCause(ctx)
	s.cancel = func() { cancel(errRemoved) }
	w.sockets[rel] = s
	w.wg.Go(func() {
		defer close(s.done)
		if old != nil {
			<-old.done
		}
		w.serve(own, rel)
	})
}

var errRemoved = errors.New("the socket was removed")

func (w *Watcher) removed(path string) {
	rel, err := filepath.Rel(w.c.Dir.root, path)
	if err != nil {
		return
	}
	for name, s := range w.sockets {
		if name != rel && !strings.HasPrefix(name, rel+"/") {
			continue
		}
		if id, there := w.c.Dir.socketAt(name); there && id == s.id {
			continue
		}
		s.cancel()
		delete(w.sockets, name)
	}
}

// sweep removes sockets that are gone.
func (w *Watcher) sweep() {
	for name := range w.sockets {
		w.removed(filepath.Join(w.c.Dir.root, name))
	}
}

// serve registers a plugin, retrying until its socket is removed, and deregisters it then.
func (w *Watcher) serve(ctx context.Context, rel string) {
	again := backoff.Backoff{First: retryFirst, Most: retryMax}
	for {
		info, handler, err := w.register(ctx, rel)
		if handler != nil {
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), errRemoved) {
				_ = w.guard.Do("plugin deregistration", func() { handler.Deregister(info) }, "plugin", info.Name)
				w.c.Logger.Info("deregistered plugin", "type", info.Type, "plugin", info.Name)
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		wait := again.Next()
		w.c.Logger.Warn("could not register plugin, retrying", "socket", rel, "error", bounded.Text(err.Error(), maxError),
			"after", wait)
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// register makes one attempt. handler is nil if it failed.
func (w *Watcher) register(ctx context.Context, rel string) (info Info, handler Handler, err error) {
	conn, err := w.c.Dir.Dial(filepath.Join(w.c.Dir.root, rel), maxMessage)
	if err != nil {
		return info, nil, err
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	asked, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	response, err := client.GetInfo(asked, &registration.InfoRequest{})
	if err != nil {
		return info, nil, fmt.Errorf("GetInfo: %w", err)
	}
	info = Info{
		Type:     response.Type,
		Name:     response.Name,
		Endpoint: response.Endpoint,
		Versions: response.SupportedVersions,
	}
	info.Endpoint = cmp.Or(info.Endpoint, w.c.Dir.Path(rel))
	if handler, err = w.accept(ctx, info); err != nil {
		return info, nil, errors.Join(err, notify(ctx, client, err))
	}
	if err := notify(ctx, client, nil); err != nil {
		handler.Deregister(info)
		return info, nil, err
	}
	w.c.Logger.Info("registered plugin", "type", info.Type, "plugin", info.Name, "endpoint", info.Endpoint, "versions",
		info.Versions)
	return info, handler, nil
}

// accept registers a plugin with the handler for its type. Its errors are sent to the plugin.
func (w *Watcher) accept(ctx context.Context, info Info) (Handler, error) {
	if len(info.Type) > maxName || info.Name == "" || len(info.Name) > maxName || len(info.Endpoint) > maxEndpoint ||
		len(info.Versions) > maxVersions {
		return nil, errors.New("RegisterPlugin error -- plugin validation failed with err: its name, type, endpoint or " +
			"list of versions is empty or too long")
	}
	handler := w.c.Handlers[info.Type]
	if handler == nil {
		return nil, fmt.Errorf("RegisterPlugin error -- no handler registered for plugin type: %s", info.Type)
	}
	_, err := w.c.Dir.relative(info.Endpoint)
	if err == nil {
		err = handler.Validate(info)
	}
	if err != nil {
		return nil, fmt.Errorf("RegisterPlugin error -- plugin validation failed with err: %w", err)
	}
	panicked := w.guard.Do("plugin registration", func() { err = handler.Register(ctx, info) }, "plugin", info.Name)
	if err = errors.Join(panicked, err); err != nil {
		return nil, fmt.Errorf("RegisterPlugin error -- plugin registration failed with err: %w", err)
	}
	return handler, nil
}

// notify sends the result to the plugin.
func notify(ctx context.Context, client registration.RegistrationClient, failure error) error {
	status := &registration.RegistrationStatus{PluginRegistered: failure == nil}
	if failure != nil {
		status.Error = bounded.Text(failure.Error(), maxError)
	}
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil {
		return fmt.Errorf("NotifyRegistrationStatus: %w", err)
	}
	return nil
}

// maxError limits how much of an error is logged or sent, in bytes, because a plugin may have written part of it.
const maxError = 1024
