package containerd

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// answerWithin is how long the agent's start waits for shims. A slower shim is recovered when it answers; until then
// its containers have the state that is on disk.
const answerWithin = 500 * time.Millisecond

// recover recovers the containers of earlier processes. It assumes that a directory without a leading dot is
// complete, that a shim that refuses connections is dead, and that the states of a live shim are newer than those on
// disk.
func (r *Runtime) recover() error {
	root := filepath.Join(r.config.DataDir, "containers")
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	uids := map[string]bool{}
	for _, entry := range entries {
		dir := filepath.Join(root, entry.Name())
		c := &container{dir: dir, status: shim.Status{ID: entry.Name(), State: string(runtime.Created)}}
		if strings.HasPrefix(entry.Name(), ".") {
			err = unmount(shim.Rootfs(dir))
			err = errors.Join(err, disk.RemoveAll(context.Background(), dir))
		} else if err = shim.ReadJSON(filepath.Join(dir, "record.json"), &c.record); err != nil {
			err = errors.Join(err, r.discard(context.Background(), dir)) // incomplete after a power failure
		} else {
			var s shim.Status
			if shim.ReadJSON(shim.StateFile(dir), &s) == nil && s.ID == c.Spec.ID {
				c.status = s
			}
			r.containers[c.Spec.ID] = c
			uids[c.Spec.PodUID] = true
		}
		if err != nil {
			r.config.Log.Error("could not recover container", "directory", dir, "error", err)
		}
	}
	pods, err := os.ReadDir(filepath.Join(r.config.RunDir, "pods"))
	if err != nil {
		return err
	}
	for _, p := range pods {
		if validUID(p.Name()) {
			uids[p.Name()] = true
		}
	}
	var wait sync.WaitGroup
	for _, uid := range slices.Sorted(maps.Keys(uids)) {
		p := r.pod(uid)
		p.ops.Lock() // Start, Remove and RemovePod of this pod wait
		wait.Add(1)
		r.work.Go(func() {
			defer wait.Done()
			defer p.ops.Unlock()
			ctx, cancel := context.WithTimeout(r.ctx, hungAfter)
			defer cancel()
			if err := p.watch(ctx); err != nil && r.ctx.Err() == nil {
				if errors.Is(err, context.DeadlineExceeded) {
					r.config.Log.Warn("killed hung shim", "pod", uid)
				}
				_ = p.kill()
				r.gone(uid)
			}
		})
	}
	all := make(chan struct{})
	r.work.Go(func() {
		wait.Wait()
		close(all)
	})
	timer := time.NewTimer(answerWithin)
	defer timer.Stop()
	select {
	case <-all:
	case <-timer.C:
	case <-r.ctx.Done():
	}
	return nil
}

// Purge implements runtime.Runtime. In the host's containerd, it removes Coracle's namespace.
func (r *Runtime) Purge(ctx context.Context) error {
	r.mu.Lock()
	ids, uids := slices.Collect(maps.Keys(r.containers)), slices.Collect(maps.Keys(r.pods))
	r.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, r.Remove(ctx, id))
	}
	for _, uid := range uids {
		errs = append(errs, r.RemovePod(ctx, uid, ""))
	}
	errs = append(errs, killCgroup(r.config.CgroupRoot), unloadProfile(securityFS, r.config.defaultProfile()))
	if cgroup2() {
		var keep []string
		if _, err := os.Stat("/run/systemd/system"); err == nil {
			keep = ofSystemd
		}
		errs = append(errs, restoreControllers(rootControl, r.config.DataDir, keep))
	}
	if err := errors.Join(append(errs, r.leave(ctx))...); err != nil {
		return err
	}
	// Open files stay usable until Run ends.
	for _, name := range []string{
		"containers", "shim", "empty", "content", snapshotter, "meta.db", filepath.Base(hostsFile(r.config)),
	} {
		errs = append(errs, disk.RemoveAll(ctx, filepath.Join(r.config.DataDir, name)))
	}
	return errors.Join(append(errs, disk.RemoveAll(ctx, filepath.Join(r.config.RunDir, "pods")))...)
}
