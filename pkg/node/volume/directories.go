package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
)

// Directories manages the volumes that are provisioned on this node. Each PersistentVolume has one directory, or one
// file if its volumeMode is Block. The PersistentVolume is created before its directory and deleted after it. So no
// directory is leaked: Remove is called until it succeeds once.
type Directories struct {
	dir string
	// inUse returns a pod that uses a volume, "" if none does. It ignores the pod besides, unless that is "".
	inUse func(volume string, besides types.UID) (types.UID, error)
	fail  failpoint.Hook
	sizes directorySizes

	mu     sync.Mutex      // held while a volume is made or removed, or a device is attached or detached
	making map[string]bool // volumes and snapshots that are being copied to, and snapshots that are being removed
	copied map[string]int  // the number of running copies, by source
	copies int             // the number of running copies
}

// ErrInUse means that a pod on this node still uses a volume.
var ErrInUse = errors.New("the volume is in use")

// Prefixes of directories that are being made or removed, and of project records. No volume name begins with a dot.
const (
	newPrefix     = ".new-"
	removing      = ".removing-"
	projectPrefix = ".project-"
)

func (d *Directories) path(volume string) (string, error) {
	if d.dir == "" {
		return "", errors.New("this node has no local volumes")
	}
	if volume == "" || strings.HasPrefix(volume, ".") || filepath.Base(volume) != volume {
		return "", fmt.Errorf("invalid name of a volume: %q", volume)
	}
	return filepath.Join(d.dir, volume), nil
}

// make makes a volume's directory atomically, with its mode and its size in bytes. want is the path in the
// PersistentVolume: make refuses a path in another data directory. If the file system enforces project quotas, the
// size is also set for an existing directory.
func (d *Directories) make(volume, want string, size int64) error {
	path, err := d.path(volume)
	if err != nil {
		return err
	}
	if path != want {
		return d.elsewhere(want)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if info, err := os.Lstat(path); err == nil {
		if !info.IsDir() {
			return &os.PathError{Op: "use", Path: path, Err: unix.ENOTDIR}
		}
		return d.limit(volume, size)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Mode 0711: users cannot list the volumes.
	if err := os.MkdirAll(d.dir, 0o711); err != nil {
		return err
	}
	next := filepath.Join(d.dir, newPrefix+volume)
	if err := os.Mkdir(next, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.fail.At("local.mkdir"); err != nil {
		return err
	}
	if err := d.assign(volume, next); err != nil {
		return err
	}
	if err := d.limit(volume, size); err != nil {
		return err
	}
	if err := d.fail.At("local.limited"); err != nil {
		return err
	}
	if err := os.Chmod(next, 0o777); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return d.fail.At("local.made")
}

func (d *Directories) elsewhere(path string) error {
	return fmt.Errorf("the volume is at %s, but local volumes of this node are in %s", path, d.dir)
}

// Resize sets the size of a volume, in bytes. It succeeds if the volume does not exist yet. It does not shrink block
// volumes.
func (d *Directories) Resize(volume string, size int64) error {
	path, err := d.path(volume)
	if err != nil {
		return err
	}
	if size <= 0 {
		return fmt.Errorf("invalid size of a volume: %d", size)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if isBlock(path) {
		return d.grow(path, size)
	}
	return d.limit(volume, size)
}

// Remove removes a volume's directory or file. It succeeds if there is none. The error is ErrInUse while a pod on
// this node uses the volume, and ErrBusy while it is being copied.
func (d *Directories) Remove(ctx context.Context, volume string) error {
	path, err := d.path(volume)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.making[volume] || d.copied[volume] > 0 {
		return ErrBusy
	}
	if err := d.idle(volume); err != nil {
		return err
	}
	if err := detachImage(path); err != nil {
		return err
	}
	if err := d.limit(volume, 0); err != nil { // the project is reused for another volume
		return err
	}
	gone := filepath.Join(d.dir, removing+volume)
	if err := disk.RemoveAll(ctx, gone); err != nil { // an interrupted removal
		return err
	}
	if err := os.Rename(path, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.fail.At("local.renamed"); err != nil {
		return err
	}
	for _, path := range []string{gone, filepath.Join(d.dir, newPrefix+volume)} {
		if err := disk.RemoveAll(ctx, path); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(d.dir, projectPrefix+volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.fail.At("local.removed")
}

func (d *Directories) idle(volume string) error {
	pod, err := d.inUse(volume, "")
	if err == nil && pod != "" {
		err = fmt.Errorf("%w by the pod with UID %s", ErrInUse, pod)
	}
	return err
}

func (m *Manager) usedBy(volume string, besides types.UID) (types.UID, error) {
	pods, err := m.List()
	if err != nil {
		return "", err
	}
	for _, uid := range pods {
		r, err := m.record(uid)
		if err != nil {
			return "", err
		}
		for _, v := range r.content().Volumes {
			if v.Persistent == volume && uid != besides {
				return uid, nil
			}
		}
	}
	return "", nil
}
