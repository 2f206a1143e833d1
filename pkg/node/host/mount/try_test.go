package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTryDirectory: overlays are refused on file systems on which they lose what a container removes.
func TestTryDirectory(t *testing.T) {
	for name, c := range map[string]struct {
		make func(dir string) error
		want string
	}{
		"disk":  {make: func(string) error { return nil }},
		"tmpfs": {make: func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") }},
		"overlay": {want: "overlay: ", make: func(dir string) error {
			fd, err := Overlay{
				Lower: []string{layers(t, 1)[0]}, Upper: filepath.Join(filepath.Dir(dir), "upper"),
				Work: filepath.Join(filepath.Dir(dir), "work"),
			}.New()
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return Attach(fd, dir)
		}},
		"no types": {want: "ext4: its directories have no types of files", make: func(dir string) error {
			image := filepath.Join(filepath.Dir(dir), "image")
			if out, err := exec.Command("mkfs.ext4", "-q", "-O", "^filetype", image, "8M").CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", errors.ErrUnsupported, out)
			}
			if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", errors.ErrUnsupported, out)
			}
			return nil
		}},
		"read-only": {want: "read-only file system", make: func(dir string) error {
			return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir := filepath.Join(top, "dir")
			for _, d := range []string{dir, filepath.Join(top, "upper"), filepath.Join(top, "work")} {
				require.NoError(t, os.Mkdir(d, 0o755))
			}
			var tried error
			var left []string
			err := Alone(func() (err error) {
				if err = c.make(dir); err != nil {
					return err
				}
				tried = TryDirectory(dir)
				left, err = filepath.Glob(filepath.Join(dir, ".coracle-try-*"))
				return err
			})
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			require.NoError(t, err)
			require.Empty(t, left)
			if c.want == "" {
				require.NoError(t, tried)
			} else {
				require.ErrorContains(t, tried, c.want)
			}
		})
	}
}
