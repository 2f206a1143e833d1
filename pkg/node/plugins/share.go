package plugins

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxMounts limits how much of the mount table is read, in bytes.
const maxMounts = 64 << 20

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Sharer makes the directory a shared mount when a container first needs it.
type Sharer struct {
	Dir Dir
	mu  sync.Mutex
}

// Share prepares a path that a container mounts with mount propagation. If it is in the directory or contains it, the
// directory becomes a shared mount, which it is not without systemd, so that a driver's mounts reach the host.
func (s *Sharer) Share(path string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil //nolint:nilerr // it does not exist yet, so nothing is below it
	}
	root := s.Dir.root
	if !within(path, root) && !within(root, path) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if shared, err := isShared(root); err != nil || shared {
		return err
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share %s: %w", root, err)
	}
	if err := unix.Mount("", root, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share %s: %w", root, err)
	}
	return nil
}

func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// isShared reports whether the mount at or above a path is shared.
func isShared(path string) (bool, error) {
	data, err := bounded.File("/proc/self/mountinfo", maxMounts)
	if err != nil {
		return false, err
	}
	longest, shared := -1, false
	for line := range strings.Lines(string(data)) {
		// proc_pid_mountinfo(5): the fifth field is the mount point; optional fields follow the sixth, until "-".
		fields := strings.Fields(line)
		if len(fields) < 7 {
			continue
		}
		point := unescape.Replace(fields[4])
		if !within(path, point) || len(point) < longest {
			continue
		}
		longest, shared = len(point), false
		for _, option := range fields[6:] {
			if option == "-" {
				break
			}
			shared = shared || strings.HasPrefix(option, "shared:")
		}
	}
	return shared, nil
}
