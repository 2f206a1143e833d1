package shutdown

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Await returns when the machine has the socket of a system bus, which it may get when its packages are installed, or
// an error if that cannot be waited for.
func Await(ctx context.Context) error {
	path, err := socket()
	if err != nil {
		return err
	}
	for {
		there, err := awaitPart(ctx, path)
		if there || err != nil {
			return err
		}
	}
}

// socket returns the path of the system bus's socket.
func socket() (string, error) {
	address := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if address == "" {
		return "/var/run/dbus/system_bus_socket", nil
	}
	text, ok := strings.CutPrefix(address, "unix:path=")
	text, _, _ = strings.Cut(text, ",")
	path, err := url.PathUnescape(text) // the same rules
	if !ok || err != nil || !filepath.IsAbs(path) || strings.Contains(path, ";") {
		return "", fmt.Errorf("the address of the system bus is not that of one socket: %q", address)
	}
	return path, nil
}

// awaitPart waits for a change in the deepest directory on the way to a path. It returns true when the path is there.
func awaitPart(ctx context.Context, path string) (there bool, err error) {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return false, err
	}
	defer watch.Close()
	dir := filepath.Dir(path)
	for err := watch.Add(dir); err != nil; err = watch.Add(dir) {
		if dir == filepath.Dir(dir) {
			return false, fmt.Errorf("watch the way to %s: %w", path, err)
		}
		dir = filepath.Dir(dir)
	}
	for { // after the watch was made: what comes from now on is an event
		if _, err := os.Stat(path); err == nil {
			return true, nil
		}
		if next := below(dir, path); next != path {
			if _, err := os.Stat(next); err == nil {
				return false, nil // there is more of the way to watch
			}
		}
		select {
		case e, ok := <-watch.Events:
			if !ok || e.Name == dir && e.Has(fsnotify.Remove|fsnotify.Rename) {
				return false, nil
			}
		case err := <-watch.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) { // after lost events it is looked at again
				return false, err
			}
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// below returns the element after dir on the way to a path.
func below(dir, path string) string {
	for filepath.Dir(path) != dir && filepath.Dir(path) != path {
		path = filepath.Dir(path)
	}
	return path
}
