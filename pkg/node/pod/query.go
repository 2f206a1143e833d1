package pod

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Pods returns copies of the node's pods with their current status.
func (m *Manager) Pods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, w := range m.all() {
		if p := w.current(); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// Blocked is a pod whose containers cannot be created yet.
type Blocked struct {
	Namespace, Name string
	// Reason is the reason of the pod's event, such as FailedMount.
	Reason, Message string
}

// Blocked returns the pods whose last attempt to set up the sandbox or to mount the volumes failed. Their status does
// not say so: it has ContainerCreating, as in the kubelet.
func (m *Manager) Blocked() []Blocked {
	var out []Blocked
	for _, w := range m.all() {
		if b := w.blocked(); b != nil {
			out = append(out, *b)
		}
	}
	slices.SortFunc(out, func(a, b Blocked) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func (w *worker) blocked() *Blocked {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.api.pod
	if w.api.gone || p.DeletionTimestamp != nil || w.ended() {
		return nil
	}
	for _, kind := range []Kind{SetupSandbox, MountVolumes} {
		if f, failed := w.actions.failures[string(kind)]; failed {
			return &Blocked{Namespace: p.Namespace, Name: p.Name, Reason: f.Reason, Message: f.Message}
		}
	}
	return nil
}

// Find returns a copy of a pod with its current status. uid may also be a static pod's mirror's. Without uid, a pod
// that is still ending but gone from the API does not match, since a new pod may have its name.
func (m *Manager) Find(namespace, name string, uid types.UID) (*corev1.Pod, bool) {
	for _, w := range m.all() {
		if w.matches(namespace, name, uid) {
			if p := w.current(); p != nil {
				return p, true
			}
		}
	}
	return nil, false
}

func (w *worker) matches(namespace, name string, uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.api.pod
	if p.Namespace != namespace || p.Name != name {
		return false
	}
	only := !w.api.gone || w.api.static // the API can have no other pod with this name
	return p.UID == uid || uid == "" && only || w.api.mirror != nil && w.api.mirror.UID == uid
}

// Instances returns the instances of a pod's container that the runtime has, newest first.
func (m *Manager) Instances(uid types.UID, name string) []Instance {
	return group(m.containers.of(uid))[name]
}

// Token returns a token of the pod's service account for the API server.
func (m *Manager) Token(ctx context.Context, p *corev1.Pod) (string, error) {
	return m.volumes.Token(ctx, p)
}

// TokenOf returns a token of the pod's service account for an audience. The account must have the given UID.
func (m *Manager) TokenOf(ctx context.Context, p *corev1.Pod, account types.UID, audience string) (string, error) {
	return m.volumes.TokenOf(ctx, p, account, audience)
}

// ImagesInUse returns the names and IDs of the images of all containers and volumes.
func (m *Manager) ImagesInUse() map[string]bool {
	used := map[string]bool{}
	m.containers.each(func(c runtime.Container) {
		used[c.ImageID], used[c.Image], used[c.Labels[labelImageID]] = true, true, true
	})
	for _, id := range m.volumes.ImagesInUse() {
		used[id] = true
	}
	return used
}

// WaitExit returns when the container has exited or was removed, or when ctx is done.
func (m *Manager) WaitExit(ctx context.Context, uid types.UID, id string) {
	w := m.worker(uid)
	for w != nil {
		changed := w.containers.wait()
		if c, ok := m.containers.get(uid, id); !ok || c.State == runtime.Exited {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-m.ctx.Done():
			return
		}
	}
}

// VolumeDir returns the directory of a pod's emptyDir on disk, whether it exists or not.
func (m *Manager) VolumeDir(uid types.UID, volume string) string {
	return m.volumes.VolumeDir(uid, volume)
}

// PodUsage returns the most bytes of memory that a pod has used at a time, and its processor time. It fails unless the
// container has ended.
func (m *Manager) PodUsage(ctx context.Context, uid types.UID, container string) (uint64, time.Duration, error) {
	if runs := m.Instances(uid, container); len(runs) == 0 || runs[0].State != runtime.Exited {
		return 0, 0, fmt.Errorf("container %s of pod %s has not ended", container, uid)
	}
	return m.c.Runtime.PodUsage(ctx, m.cgroup(uid))
}

// PodPressure returns how long the pod's tasks have waited for resources, nil if the kernel does not measure it.
func (m *Manager) PodPressure(ctx context.Context, uid types.UID) *runtime.Pressure {
	return m.c.Runtime.PodPressure(ctx, m.cgroup(uid))
}
