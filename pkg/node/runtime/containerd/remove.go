package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// Remove implements runtime.Runtime. It renames the directory before deleting it, so that recover does not take a
// partly deleted directory for a container.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	c, err := r.get(id)
	if err != nil {
		return nil
	}
	c.ops.Lock()
	defer c.ops.Unlock()
	if c.removed {
		return nil
	}
	p := r.pod(c.Spec.PodUID)
	if p.alive() {
		if _, err := p.client().Call(ctx, shim.Request{Op: shim.Remove, ID: id}); err != nil && !noShim(err) {
			return fmt.Errorf("remove %s: %w", id, err)
		}
	}
	if c.public().State != runtime.Exited {
		if err := killCgroup(c.cgroup()); err != nil {
			return err
		}
	}
	if err := r.discard(ctx, c.dir); err != nil {
		return err
	}
	r.forget(c)
	if c.Chain != "" && !r.images.has(c.Chain) {
		return r.images.collect(ctx)
	}
	return nil
}

func (r *Runtime) discard(ctx context.Context, dir string) error {
	if err := unmount(shim.Rootfs(dir)); err != nil {
		return err
	}
	gone := filepath.Join(filepath.Dir(dir), ".old-"+filepath.Base(dir))
	if err := r.config.Failpoints.At("container.unmounted"); err != nil {
		return err
	}
	if err := os.Rename(dir, gone); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := r.config.Failpoints.At("container.renamed"); err != nil {
		return err
	}
	return disk.RemoveAll(ctx, gone) // handles directories that a container nested deeply
}

func unmount(path string) error {
	for {
		switch err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err {
		case nil:
		case unix.EINVAL, unix.ENOENT, unix.ENOTDIR:
			return nil
		default:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}
