package access

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
)

// Name implements run.Component.
func (a *Access) Name() string { return "access" }

// file is a configuration file that is watched for changes.
type file struct {
	path   string
	reload func() error
}

// Run implements run.Component: it watches the files until ctx ends. An invalid file is logged, and its predecessor
// stays in effect.
func (a *Access) Run(ctx context.Context) error {
	defer func() {
		if p := a.providers.Load(); p != nil {
			p.cancel()
		}
	}()
	var files []file
	if a.cfg.AuthenticationFile != "" {
		files = append(files, file{a.cfg.AuthenticationFile, a.reloadAuthentication})
	}
	if a.cfg.AuthorizationFile != "" {
		files = append(files, file{a.cfg.AuthorizationFile, a.reloadAuthorization})
	}
	if a.cfg.Proxy.CAFile != "" {
		files = append(files, file{a.cfg.Proxy.CAFile, a.reloadProxy})
	}
	if len(files) == 0 {
		a.SetReady()
		<-ctx.Done()
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watch(watcher, files)
	}
	if err != nil {
		a.cfg.Log.Warn("could not watch configuration files: changes are seen at the next start", "error", err)
		a.SetReady()
		<-ctx.Done()
		return nil
	}
	a.reload(files) // the files may have changed since New read them
	a.SetReady()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-watcher.Events:
			if !concerns(ev.Name, files) {
				continue
			}
		case err := <-watcher.Errors:
			a.cfg.Log.Warn("could not watch configuration files", "error", err)
		}
		drain(watcher)
		a.reload(files)
		if err := watch(watcher, files); err != nil {
			a.cfg.Log.Warn("could not watch configuration files", "error", err)
		}
	}
}

func (a *Access) reload(files []file) {
	for _, f := range files {
		was := a.read[f.path]
		if err := f.reload(); err != nil {
			a.cfg.Log.Error("could not reload configuration: what was read before stays in use", "file", f.path, "error", err)
		} else if was != a.read[f.path] {
			a.cfg.Log.Info("reloaded configuration", "file", f.path)
		}
	}
}

// watch watches the directories of the files and of their symlink targets, because editors and mounted volumes
// replace files.
func watch(w *fsnotify.Watcher, files []file) error {
	for _, f := range files {
		if err := w.Add(filepath.Dir(f.path)); err != nil {
			return err
		}
		if target, err := filepath.EvalSymlinks(f.path); err == nil && target != f.path {
			if err := w.Add(filepath.Dir(target)); err != nil {
				return err
			}
		}
	}
	return nil
}

// concerns reports whether an event may concern one of the files. If one is reached through a symlink, every event
// may.
func concerns(name string, files []file) bool {
	return slices.ContainsFunc(files, func(f file) bool {
		target, err := filepath.EvalSymlinks(f.path)
		return name == f.path || err == nil && target != f.path
	})
}

// drain discards queued events: one reload covers them all.
func drain(w *fsnotify.Watcher) {
	for {
		select {
		case <-w.Events:
		default:
			return
		}
	}
}
