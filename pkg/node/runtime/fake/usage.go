package fake

import (
	"context"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func (r *Runtime) MemoryUsage(_ context.Context, cgroup, id string) (sum uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.spec.CgroupParent == cgroup && (id == "" || id == c.spec.ID) && c.status.State == runtime.Running {
			sum += c.used.Memory
		}
	}
	return sum, nil
}

func (r *Runtime) PodUsage(context.Context, string) (uint64, time.Duration, error) {
	return 64 << 20, time.Second, nil
}

// PodPressure returns the pressure of one of the pod's containers.
func (r *Runtime) PodPressure(_ context.Context, cgroup string) *runtime.Pressure {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.spec.CgroupParent == cgroup && c.used.Pressure != nil {
			return c.used.Pressure
		}
	}
	return nil
}
