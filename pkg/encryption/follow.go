package encryption

import (
	"context"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// follow reloads the file whenever it changes, until ctx ends. Directories are watched, not the file: editors and mounted volumes
// replace it.
func (k *Keeper) follow(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = k.watch(watcher)
	}
	if err != nil {
		k.cfg.Logger.Warn("could not watch the encryption configuration: a change is only seen by `coracle secrets-encrypt reencrypt` and at the next start", "file", k.cfg.File, "error", err)
		close(k.ready)
		<-ctx.Done()
		return
	}
	_ = k.reload(ctx) // it may have changed since it was read
	close(k.ready)
	for {
		select {
		case <-ctx.Done():
			return
		case ev := <-watcher.Events:
			if !k.concerns(ev.Name) {
				continue
			}
		case err := <-watcher.Errors:
			k.cfg.Logger.Warn("could not watch encryption configuration", "file", k.cfg.File, "error", err)
		}
		drain(watcher)
		_ = k.reload(ctx) // logs why not, and says so in Warnings
		if err := k.watch(watcher); err != nil {
			k.cfg.Logger.Warn("could not watch encryption configuration", "file", k.cfg.File, "error", err)
		}
	}
}

// watch adds the directories that hold the file and what it is a link to.
func (k *Keeper) watch(w *fsnotify.Watcher) error {
	if err := w.Add(filepath.Dir(k.cfg.File)); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(k.cfg.File); err == nil && target != k.cfg.File {
		return w.Add(filepath.Dir(target))
	}
	return nil
}

// concerns leaves out other files of the directory, unless links are involved.
func (k *Keeper) concerns(name string) bool {
	target, err := filepath.EvalSymlinks(k.cfg.File)
	return name == k.cfg.File || err == nil && target != k.cfg.File
}

// drain takes the events that are there already: one look at the file is enough for them all.
func drain(w *fsnotify.Watcher) {
	for {
		select {
		case <-w.Events:
		default:
			return
		}
	}
}
