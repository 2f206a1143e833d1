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

// Await returns once the machine has the socket of a system bus, for example after its packages are installed. It
// returns an error if it cannot wait for that.
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

func socket() (string, error) {
	address := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if address == "" {
		return "/var/run/dbus/system_bus_socket", nil
	}
	text, ok := strings.CutPrefix(address, "unix:path=")
	text, _, _ = strings.Cut(text, ",")
	path, err := url.PathUnescape(text) // D-Bus escapes as URLs do
	if !ok || err != nil || !filepath.IsAbs(path) || strings.Contains(path, ";") {
		return "", fmt.Errorf("the address of the system bus does not name one socket: %q", address)
	}
	return path, nil
}

// awaitPart watches the deepest existing directory on the way to path until it changes. It returns true once path
// exists.
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
	for { // look only after adding the watch, so that no change is missed
		if _, err := os.Stat(path); err == nil {
			return true, nil
		}
		if next := below(dir, path); next != path {
			if _, err := os.Stat(next); err == nil {
				return false, nil // watch a deeper directory
			}
		}
		select {
		case e, ok := <-watch.Events:
			if !ok || e.Name == dir && e.Has(fsnotify.Remove|fsnotify.Rename) {
				return false, nil
			}
		case err := <-watch.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) { // after lost events, look again
				return false, err
			}
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// below returns the path of the element after dir on the way to path.
func below(dir, path string) string {
	for filepath.Dir(path) != dir && filepath.Dir(path) != path {
		path = filepath.Dir(path)
	}
	return path
}
