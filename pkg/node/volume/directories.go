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

// Directories are the volumes that are provisioned on this node, one directory for each PersistentVolume, or one file
// for those of volumeMode Block. The volume's object is written before its directory is made, and removed after it, so
// that a directory is never forgotten: Remove is called until it succeeds once.
type Directories struct {
	dir string
	// inUse returns a pod, besides one that may be "", that uses a volume, "" for none.
	inUse func(volume string, besides types.UID) (types.UID, error)
	fail  failpoint.Hook

	mu     sync.Mutex      // held while a directory is made or removed, or a device is attached or detached
	making map[string]bool // volumes and snapshots that are made as copies, and snapshots that are removed
	copied map[string]int  // how many copies are being made of volumes and snapshots
	copies int             // under way
}

// ErrInUse means that a pod on this node still uses a volume.
var ErrInUse = errors.New("the volume is in use")

// The prefixes of directories that are being made or removed, and of the records of volumes' projects. Names of volumes
// do not begin with a dot.
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

// make makes a volume's directory, with its mode and its size in bytes, in one step. want is the path in the volume's
// object: one from another data directory would be another volume. The size is enforced where the file system has
// project quotas, also of a directory that is there already.
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
	// Only containers that mount a directory in it can reach it.
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

// Resize sets the size of a volume, in bytes. It succeeds if the volume was never used: it gets its size when it is
// made.
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

// Remove removes a volume's directory with everything in it, or its file. It succeeds if there is none, and fails with
// ErrInUse while a pod on this node uses it.
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
	if err := d.limit(volume, 0); err != nil { // its project will be another volume's
		return err
	}
	gone := filepath.Join(d.dir, removing+volume)
	if err := disk.RemoveAll(ctx, gone); err != nil { // of a removal that was interrupted
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

// idle fails with ErrInUse while a pod on this node uses a volume.
func (d *Directories) idle(volume string) error {
	pod, err := d.inUse(volume, "")
	if err == nil && pod != "" {
		err = fmt.Errorf("%w by the pod with UID %s", ErrInUse, pod)
	}
	return err
}

// usedBy returns a pod of this node, besides one that may be "", that uses a PersistentVolume, "" for none.
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
