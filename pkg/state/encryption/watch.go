package encryption

import (
	"context"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watchFile reloads the file when it changes, until ctx is done. It watches directories, because editors and mounted
// volumes replace the file.
func (k *Keeper) watchFile(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = k.addDirectories(watcher)
	}
	if err != nil {
		k.cfg.Logger.Warn("could not watch the encryption configuration: a change is only seen by `coracle secrets-encrypt "+
			"reencrypt` and at the next start", "file", k.cfg.File, "error", err)
		k.SetReady()
		<-ctx.Done()
		return
	}
	_ = k.reload(ctx) // it may have changed since it was read
	k.SetReady()
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
		_ = k.reload(ctx) // logged, and reported in Warnings
		if err := k.addDirectories(watcher); err != nil {
			k.cfg.Logger.Warn("could not watch encryption configuration", "file", k.cfg.File, "error", err)
		}
	}
}

func (k *Keeper) addDirectories(w *fsnotify.Watcher) error {
	if err := w.Add(filepath.Dir(k.cfg.File)); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(k.cfg.File); err == nil && target != k.cfg.File {
		return w.Add(filepath.Dir(target))
	}
	return nil
}

// concerns reports whether an event may be about the file. If it is a symlink, any event may be.
func (k *Keeper) concerns(name string) bool {
	target, err := filepath.EvalSymlinks(k.cfg.File)
	return name == k.cfg.File || err == nil && target != k.cfg.File
}

// drain discards queued events: one reload covers all of them.
func drain(w *fsnotify.Watcher) {
	for {
		select {
		case <-w.Events:
		default:
			return
		}
	}
}
