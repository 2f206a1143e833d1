package v1alpha1

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Reserved is what of a machine is kept from pods, for Coracle's own processes and the system. The pods' cgroup is bounded by what is
// left, and the node's allocatable is that without the eviction threshold.
type Reserved struct {
	// MilliCPU are thousandths of a core; Memory is in bytes.
	MilliCPU, Memory int64
	// PIDs are process and thread IDs of the kernel's.
	PIDs int64
	// memory is true if Memory was given.
	memory bool
}

const (
	reservedShare   = 16 // of memory one part in so many is kept, within the bounds
	reservedLeast   = 128 << 20
	reservedMost    = 512 << 20
	reservedPIDs    = 1024
	leastPodPIDs    = 16
	reservableShare = 2 // at least one part in so many of memory is left to pods
)

// MemoryOf is how many bytes are kept of so much memory: what was asked for, or one part in 16, at least 128 MiB and at most 512 MiB,
// and never more than half.
func (r Reserved) MemoryOf(capacity int64) int64 {
	if r.memory {
		return min(r.Memory, capacity/reservableShare)
	}
	return min(max(capacity/reservedShare, reservedLeast), reservedMost, capacity/reservableShare)
}

// ParseReserved reads entries of the form "memory=512Mi", "cpu=100m" or "pid=1000", as the kubelet's kube-reserved has them. What no entry
// names has its default.
func ParseReserved(entries []string) (Reserved, error) {
	r := Reserved{PIDs: reservedPIDs}
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		q, err := resource.ParseQuantity(strings.TrimSpace(value))
		if !ok || err != nil || q.Sign() < 0 {
			return Reserved{}, fmt.Errorf("kube-reserved %q is not of the form memory=512Mi, cpu=100m or pid=1000", entry)
		}
		switch strings.TrimSpace(name) {
		case "cpu":
			r.MilliCPU = q.MilliValue()
		case "memory":
			r.Memory, r.memory = q.Value(), true
		case "pid":
			r.PIDs = q.Value()
		default:
			return Reserved{}, fmt.Errorf("kube-reserved %q: only cpu, memory and pid can be reserved", entry)
		}
	}
	return r, nil
}

func (c Agent) validateReserved() []error {
	var errs []error
	if _, err := ParseReserved(c.KubeReserved); err != nil {
		errs = append(errs, err)
	}
	if c.PodMaxPIDs != -1 && c.PodMaxPIDs < leastPodPIDs {
		errs = append(errs, fmt.Errorf("pod-max-pids %d is too few for a pod: give %d or more, or -1 for no limit", c.PodMaxPIDs, leastPodPIDs))
	}
	return errs
}
