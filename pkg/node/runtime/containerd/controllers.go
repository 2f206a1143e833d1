package containerd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	rootControl     = "/sys/fs/cgroup/cgroup.subtree_control"
	controllersFile = "controllers"
	maxControllers  = 4096 // bytes
)

// ofSystemd are the controllers that systemd enables and disables in the root cgroup as its units need them.
var ofSystemd = []string{"cpu", "cpuset", "io", "memory", "pids"}

// recordControllers records once which controllers of cgroup v2 the root cgroup had enabled for its children, before
// libcontainer enables all of them for containers.
func recordControllers(control, dir string) error {
	file := filepath.Join(dir, controllersFile)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	enabled, err := bounded.File(control, maxControllers)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, enabled)
}

// restoreControllers disables the controllers that were not enabled before the first start, except keep. The kernel
// refuses this for a controller that another cgroup uses, which then stays enabled.
func restoreControllers(control, dir string, keep []string) error {
	file := filepath.Join(dir, controllersFile)
	before, err := bounded.File(file, maxControllers)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	enabled, err := bounded.File(control, maxControllers)
	if err != nil {
		return err
	}
	for _, name := range added(string(before), string(enabled), keep) {
		_ = os.WriteFile(control, []byte("-"+name), 0)
	}
	return os.Remove(file)
}

// added returns the controllers in enabled that are neither in before nor in keep.
func added(before, enabled string, keep []string) []string {
	known := append(strings.Fields(before), keep...)
	return slices.DeleteFunc(strings.Fields(enabled), func(name string) bool { return slices.Contains(known, name) })
}
