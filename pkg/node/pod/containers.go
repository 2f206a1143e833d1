package pod

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// containers caches the runtime's state of the pods' containers. It is safe for concurrent use.
type containers struct {
	runtime runtime.Runtime
	log     *slog.Logger

	mu    sync.Mutex
	byPod map[types.UID]map[string]runtime.Container // by container ID
}

func newContainers(r runtime.Runtime, log *slog.Logger) *containers {
	return &containers{runtime: r, log: log, byPod: map[types.UID]map[string]runtime.Container{}}
}

func (c *containers) list(ctx context.Context) error {
	all, err := c.runtime.List(ctx)
	if err != nil {
		return err
	}
	byPod := map[types.UID]map[string]runtime.Container{}
	for _, one := range all {
		if one.Labels[labelName] == "" {
			continue
		}
		uid := types.UID(one.PodUID)
		if byPod[uid] == nil {
			byPod[uid] = map[string]runtime.Container{}
		}
		byPod[uid][one.ID] = one
	}
	c.mu.Lock()
	c.byPod = byPod
	c.mu.Unlock()
	return nil
}

// refresh reads one container's state from the runtime. It returns the UID of its pod, or "" if it belongs to none.
func (c *containers) refresh(ctx context.Context, id string) types.UID {
	now, err := c.runtime.Get(ctx, id)
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		if ctx.Err() == nil {
			c.log.Warn("could not read container state", "container", id, "error", err)
		}
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		return c.removed(id)
	}
	if now.Labels[labelName] == "" {
		return ""
	}
	uid := types.UID(now.PodUID)
	if c.byPod[uid] == nil {
		c.byPod[uid] = map[string]runtime.Container{}
	}
	// Two reads may overtake each other, but a container's state only advances.
	if old, has := c.byPod[uid][id]; !has || rank(old.State) <= rank(now.State) {
		c.byPod[uid][id] = now
	}
	return uid
}

// removed drops a container and returns the UID of its pod. Called with mu held.
func (c *containers) removed(id string) (of types.UID) {
	for uid, set := range c.byPod {
		if _, has := set[id]; !has {
			continue
		}
		of = uid
		delete(set, id)
		if len(set) == 0 {
			delete(c.byPod, uid)
		}
	}
	return of
}

func rank(s runtime.State) int {
	switch s {
	case runtime.Running:
		return 1
	case runtime.Exited:
		return 2
	}
	return 0
}

func (c *containers) of(uid types.UID) []runtime.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.byPod[uid]))
}

func (c *containers) get(uid types.UID, id string) (runtime.Container, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, ok := c.byPod[uid][id]
	return one, ok
}

// each calls f for every container, with mu held: f must not call back.
func (c *containers) each(f func(runtime.Container)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, set := range c.byPod {
		for _, one := range set {
			f(one)
		}
	}
}

// pods returns the identity of each pod that has containers, from the containers' labels.
func (c *containers) pods() map[types.UID]*corev1.Pod {
	out := map[types.UID]*corev1.Pod{}
	c.each(func(one runtime.Container) {
		uid := types.UID(one.PodUID)
		out[uid] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: uid, Name: one.Labels[labelPodName], Namespace: one.Labels[labelNamespace]},
		}
	})
	return out
}
