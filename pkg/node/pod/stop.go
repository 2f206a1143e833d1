package pod

import (
	"context"
	"errors"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// stopContainer runs the preStop hook, sends the stop signal, then SIGKILL after the grace period, and waits.
func (w *worker) stopContainer(ctx context.Context, p *corev1.Pod, b *op, id string) error {
	m := w.m
	now, ok := m.containers.get(w.uid, id)
	if !ok || now.State == runtime.Exited {
		return nil
	}
	m.probes.End(id)
	c, _, _ := containerOf(p, b.Target)
	if c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && !b.NoHook && time.Until(b.end()) > 0 {
		w.preStop(ctx, p, b, c, id)
		b.extend(time.Now().Add(2 * time.Second)) // the least time after the hook, as in the kubelet
	}
	if time.Until(b.end()) > 0 {
		if err := m.c.Runtime.Signal(ctx, id, now.StopSignal, false); err != nil && !gone(err) {
			return err
		}
		exited, err := w.waitExit(ctx, b, id)
		if exited || err != nil {
			return err
		}
	}
	b.mu.Lock()
	b.final, b.deadline = true, time.Now().Add(time.Minute)
	b.mu.Unlock()
	if err := m.c.Runtime.Signal(ctx, id, syscall.SIGKILL, true); err != nil && !gone(err) {
		return err
	}
	m.refresh(ctx, id)
	exited, err := w.waitExit(ctx, b, id)
	if err == nil && !exited {
		err = errors.New("container did not exit within a minute of SIGKILL")
	}
	return err
}

func gone(err error) bool {
	return errors.Is(err, runtime.ErrNotFound) || errors.Is(err, runtime.ErrNotRunning)
}

func (w *worker) preStop(ctx context.Context, p *corev1.Pod, b *op, c *corev1.Container, id string) {
	hook, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	w.mu.Lock()
	ip := w.podIP()
	w.mu.Unlock()
	go func() {
		var err error
		panicked := w.m.guard.Do("hook", func() { err = w.m.hook(hook, p, c.Lifecycle.PreStop, c, id, ip) })
		if panicked != nil {
			err = panicked
		}
		done <- err
	}()
	timer := time.NewTimer(time.Until(b.end()))
	defer timer.Stop()
	for {
		changed := w.containers.wait()
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil {
				w.m.event(p, c.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
			}
			return
		case <-b.sooner:
			timer.Reset(time.Until(b.end()))
			continue
		case <-changed:
			if s, ok := w.m.containers.get(w.uid, id); ok && s.State != runtime.Exited {
				continue
			}
		case <-timer.C:
			w.m.event(p, c.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook did not end within the grace period")
		}
		cancel()
		<-done
		return
	}
}

// waitExit returns true when the instance has exited, or false when b's deadline has passed.
func (w *worker) waitExit(ctx context.Context, b *op, id string) (bool, error) {
	timer := time.NewTimer(time.Until(b.end()))
	defer timer.Stop()
	for {
		changed := w.containers.wait()
		if c, ok := w.m.containers.get(w.uid, id); !ok || c.State == runtime.Exited {
			return true, nil
		}
		select {
		case <-changed:
		case <-b.sooner:
			timer.Reset(time.Until(b.end()))
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
