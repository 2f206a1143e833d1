package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
)

// snapshotsDir holds the snapshots of the node's volumes, on their file system so that files can share blocks. Each
// snapshot is a directory with the volume's contents and a record. It is renamed to its final name when it is
// complete and synced; the next attempt removes what a killed one left.
const (
	snapshotsDir   = ".snapshots"
	snapshotData   = "data"
	snapshotRecord = "snapshot.json"
	maxSnapshot    = 4 << 10 // limits a record, in bytes
	copiesAtOnce   = 2
)

// ErrBusy means that a volume or snapshot is being copied or removed, or that copiesAtOnce copies are running.
var ErrBusy = errors.New("it is being copied or removed, or the node is busy with other copies; try again later")

// ErrNoSnapshot means that the node does not have a snapshot.
var ErrNoSnapshot = errors.New("this node does not have the snapshot")

// begin locks the volume or snapshot made, which is being made or removed, and the source of the copy, from, which
// may be copied but not removed; from is "" for a removal. end unlocks them. begin never waits.
func (d *Directories) begin(made, from string) (end func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.making == nil {
		d.making, d.copied = map[string]bool{}, map[string]int{}
	}
	if d.making[made] || d.copied[made] > 0 || d.making[from] || from != "" && d.copies >= copiesAtOnce {
		return nil, ErrBusy
	}
	d.making[made] = true
	if from != "" {
		d.copied[from]++
		d.copies++
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.making, made)
		if from == "" {
			return
		}
		d.copies--
		if d.copied[from]--; d.copied[from] == 0 {
			delete(d.copied, from)
		}
	}, nil
}

// key is the name of a snapshot in making and copied.
func key(snapshot string) string { return snapshotsDir + "/" + snapshot }

// snapshot returns the final path of a snapshot and the path at which it is prepared.
func (d *Directories) snapshot(name string) (path, next string, err error) {
	if _, err := d.path(name); err != nil {
		return "", "", err
	}
	dir := filepath.Join(d.dir, snapshotsDir)
	return filepath.Join(dir, name), filepath.Join(dir, newPrefix+name), nil
}

// FindSnapshot returns the record of a snapshot, or ErrNoSnapshot.
func (d *Directories) FindSnapshot(name string) (s storage.Snapshot, err error) {
	path, _, err := d.snapshot(name)
	if err != nil {
		return s, err
	}
	data, err := bounded.File(filepath.Join(path, snapshotRecord), maxSnapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNoSnapshot
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// TakeSnapshot copies a volume, unless the snapshot exists. size is the volume's, in bytes. A volume without a
// directory was never used: its snapshot is empty. The snapshot is not atomic: a file that is written during the copy
// is copied as it was at some moment. A block volume is not copied while a pod uses it, because its blocks depend on
// each other: the error is ErrInUse.
func (d *Directories) TakeSnapshot(ctx context.Context, name, volume string, size int64,
	copied func(uint64)) (storage.Snapshot, error) {
	path, next, err := d.snapshot(name)
	if err != nil {
		return storage.Snapshot{}, err
	}
	from, err := d.path(volume)
	if err != nil {
		return storage.Snapshot{}, err
	}
	end, err := d.begin(key(name), volume)
	if err != nil {
		return storage.Snapshot{}, err
	}
	defer end()
	switch s, err := d.FindSnapshot(name); {
	case errors.Is(err, ErrNoSnapshot):
	case err == nil && s.Volume != volume:
		return storage.Snapshot{}, fmt.Errorf("the node has snapshot %q already, of volume %q", name, s.Volume)
	default:
		return s, err
	}
	if err := disk.RemoveAll(ctx, next); err != nil { // left by an interrupted attempt
		return storage.Snapshot{}, err
	}
	if err := d.mayCopy(volume, from); err != nil {
		return storage.Snapshot{}, err
	}
	if err := os.MkdirAll(next, 0o700); err != nil {
		return storage.Snapshot{}, err
	}
	if err := os.Chmod(d.dir, 0o711); err != nil { // MkdirAll may just have made it with mode 0700
		return storage.Snapshot{}, err
	}
	s := storage.Snapshot{Volume: volume, Size: size, Taken: time.Now().UnixNano()}
	if err := d.fail.At("snapshot.begun"); err != nil {
		return s, err
	}
	data := filepath.Join(next, snapshotData)
	if info, statErr := os.Lstat(from); statErr == nil && info.Mode().IsRegular() {
		s.Size = info.Size() // size may be the target of an expansion
		err = disk.CopyFile(ctx, from, data, copied)
	} else if err = os.Mkdir(data, 0o700); err == nil {
		err = contents(ctx, from, data, copied)
	}
	if err != nil {
		return s, errors.Join(err, disk.RemoveAll(context.WithoutCancel(ctx), next))
	}
	record, err := json.Marshal(s)
	if err != nil {
		return s, err
	}
	if err := os.WriteFile(filepath.Join(next, snapshotRecord), record, 0o600); err != nil {
		return s, err
	}
	if err := d.fail.At("snapshot.copied"); err != nil {
		return s, err
	}
	if err := flush(next); err != nil {
		return s, err
	}
	if err := os.Rename(next, path); err != nil {
		return s, err
	}
	return s, flush(filepath.Dir(path))
}

// RemoveSnapshot removes a snapshot and the remains of an interrupted TakeSnapshot. It succeeds if there is none.
func (d *Directories) RemoveSnapshot(ctx context.Context, name string) error {
	path, next, err := d.snapshot(name)
	if err != nil {
		return err
	}
	end, err := d.begin(key(name), "")
	if err != nil {
		return err
	}
	defer end()
	if err := disk.RemoveAll(ctx, next); err != nil {
		return err
	}
	// Rename first, so that a partly removed snapshot is never used.
	if err := os.Rename(path, next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.fail.At("snapshot.renamed"); err != nil {
		return err
	}
	if err := disk.RemoveAll(ctx, next); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // if this was the last snapshot
	return nil
}

// Fill makes a volume from a snapshot or another volume, which content names as in storage.ContentAnnotation, unless
// the volume exists. size limits it in bytes if the file system enforces quotas.
func (d *Directories) Fill(ctx context.Context, volume, content string, size int64, copied func(uint64)) error {
	path, err := d.path(volume)
	if err != nil {
		return err
	}
	from, source, err := d.content(content)
	if err != nil {
		return err
	}
	end, err := d.begin(volume, source)
	if err != nil {
		return err
	}
	defer end()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.mayCopy(source, from); err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir, 0o711); err != nil {
		return err
	}
	next := filepath.Join(d.dir, newPrefix+volume)
	if err := disk.RemoveAll(ctx, next); err != nil { // left by an interrupted attempt
		return err
	}
	if err := d.fail.At("fill.begun"); err != nil {
		return err
	}
	if err := d.fill(ctx, volume, from, next, size, copied); err != nil {
		return errors.Join(err, disk.RemoveAll(context.WithoutCancel(ctx), next))
	}
	if err := d.fail.At("fill.copied"); err != nil {
		return err
	}
	if err := flush(next); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return flush(d.dir)
}

// fill copies a directory, or the file of a block volume, to the path to.
func (d *Directories) fill(ctx context.Context, volume, from, to string, size int64, copied func(uint64)) error {
	if isBlock(from) {
		if err := disk.CopyFile(ctx, from, to, copied); err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		image, err := openImage(to, os.O_RDWR)
		if err != nil {
			return err
		}
		defer image.Close()
		return d.reserve(image, inUnits(size))
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	if err := d.project(volume, to, size); err != nil {
		return err
	}
	return contents(ctx, from, to, copied)
}

// mayCopy fails with ErrInUse for a block volume in use. attach refuses one that is being copied.
func (d *Directories) mayCopy(volume, path string) error {
	if !isBlock(path) {
		return nil
	}
	if err := d.idle(volume); err != nil {
		return fmt.Errorf("a block volume is copied while no pod uses it: %w", err)
	}
	return nil
}

func (d *Directories) project(volume, path string, size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.assign(volume, path); err != nil {
		return err
	}
	return d.limit(volume, size)
}

// content returns the path from which a volume is filled, and its name for begin.
func (d *Directories) content(text string) (path, name string, err error) {
	kind, of, _ := strings.Cut(text, "/")
	switch kind {
	case storage.FromVolume:
		path, err = d.path(of)
		return path, of, err
	case storage.FromSnapshot:
		if path, _, err = d.snapshot(of); err == nil {
			_, err = d.FindSnapshot(of)
		}
		return filepath.Join(path, snapshotData), key(of), err
	}
	return "", "", fmt.Errorf("invalid content of a volume: %q", text)
}

// contents copies a volume's directory into a new one. A missing volume gives an empty copy with mode 0777.
func contents(ctx context.Context, from, to string, copied func(uint64)) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return os.Chmod(to, 0o777)
	}
	return disk.Copy(ctx, from, to, copied)
}

func flush(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return &os.PathError{Op: "sync", Path: path, Err: err}
	}
	return nil
}
