package pod

import (
	"context"
	"errors"
	"math"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

var _ eviction.Pods = (*Manager)(nil)

// Active implements eviction.Pods.
func (m *Manager) Active() []eviction.Pod {
	var out []eviction.Pod
	for _, w := range m.all() {
		w.mu.Lock()
		p, mounted := w.view(), w.held.volumes != nil
		ended := w.api.gone || w.end.verdict != nil || isTerminal(p)
		w.mu.Unlock()
		if ended {
			continue
		}
		one := eviction.Pod{Pod: w.trusted(p)}
		if mounted {
			one.Claims = m.volumes.Claims(p)
		}
		for _, c := range m.containers.of(p.UID) {
			one.Running = one.Running || c.State == runtime.Running
		}
		out = append(out, one)
	}
	return out
}

// Measure implements eviction.Pods.
func (m *Manager) Measure(ctx context.Context, p *corev1.Pod) (*eviction.Usage, error) {
	u := &eviction.Usage{Containers: map[string]eviction.Use{}}
	var err error
	if u.Volumes, u.Claims, err = m.volumes.Usage(ctx, p); err != nil {
		return nil, err
	}
	for _, path := range writtenFiles(m.volumes.PodDir(p.UID)) {
		one, err := disk.Of(ctx, path)
		if err != nil {
			return nil, err
		}
		u.Files = u.Files.Plus(one)
	}
	for name, runs := range group(m.containers.of(p.UID)) {
		var use eviction.Use
		if use.Logs, err = disk.Of(ctx, filepath.Join(m.c.LogDir, logDirName(p), name)); err != nil {
			return nil, err
		}
		for _, c := range runs {
			var layer disk.Usage
			layer.Bytes, layer.Inodes, err = m.c.Runtime.DiskUsage(ctx, c.ID)
			if err != nil && !gone(err) {
				return nil, err
			}
			use.Layer = use.Layer.Plus(layer)
			if c.State != runtime.Running {
				continue
			}
			s, err := m.c.Runtime.Stats(ctx, c.ID)
			if err != nil && !gone(err) {
				return nil, err
			}
			use.Memory, use.PIDs = use.Memory+int64(s.WorkingSet), use.PIDs+int64(s.Pids)
		}
		u.Containers[name] = use
	}
	return u, nil
}

// Evict implements eviction.Pods.
func (m *Manager) Evict(uid types.UID, e eviction.Eviction) <-chan struct{} {
	w := m.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.api.gone || w.end.verdict != nil || w.ended() {
		return nil
	}
	w.end.verdict = &Verdict{Reason: eviction.Reason, Message: e.Message, Evicted: true, Disrupted: e.Disrupted}
	m.event(w.api.pod, "", corev1.EventTypeWarning, eviction.Reason, e.Message)
	w.loop.wake()
	return w.end.evicted
}

// Reclaim implements eviction.Pods. It keeps the latest instances of active pods, because the status depends on them.
func (m *Manager) Reclaim(ctx context.Context) error {
	var errs []error
	for _, w := range m.all() {
		w.mu.Lock()
		p, quiet := w.view(), len(w.actions.inFlight) == 0 && !w.api.gone
		w.mu.Unlock()
		if !quiet {
			continue
		}
		for _, runs := range group(m.containers.of(p.UID)) {
			for i, c := range runs {
				if c.State == runtime.Exited && (i > 0 || isTerminal(p)) {
					errs = append(errs, w.remove(ctx, p, c.ID))
				}
			}
		}
	}
	freed, err := m.images.Collect(ctx, m.ImagesInUse(), math.MaxInt64)
	if freed > 0 {
		m.log.Info("removed unused images under disk pressure", "bytes", freed)
	}
	return errors.Join(append(errs, err)...)
}
