package v1alpha1

import (
	"fmt"
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Reserved are resources reserved for Coracle and the system. The cgroup of all pods is limited to the rest. The
// node's allocatable resources are the rest minus the eviction threshold.
type Reserved struct {
	// MilliCPU is in thousandths of a core, Memory in bytes.
	MilliCPU, Memory int64
	// PIDs is the number of process and thread IDs.
	PIDs int64
	// memory is true if Memory was set.
	memory bool
}

const (
	reservedShare       = 16 // 1/16 of memory is reserved, within the bounds below
	reservedLeast       = 128 << 20
	reservedMost        = 512 << 20
	reservedPIDs        = 1024
	leastPodPIDs        = 16
	leastPodConnections = 64

	// NoSwap and LimitedSwap are the values of Agent.SwapBehavior.
	NoSwap          = "NoSwap"
	LimitedSwap     = "LimitedSwap"
	reservableShare = 2 // at least half of memory is left for pods
)

// MemoryOf returns the reserved bytes for a capacity: the configured amount or else 1/16, at least 128 MiB and at
// most 512 MiB, and in any case at most half.
func (r Reserved) MemoryOf(capacity int64) int64 {
	if r.memory {
		return min(r.Memory, capacity/reservableShare)
	}
	return min(max(capacity/reservedShare, reservedLeast), reservedMost, capacity/reservableShare)
}

// ParseReserved parses entries such as "memory=512Mi", "cpu=100m" or "pid=1000", as in the kubelet's kube-reserved.
// Resources without an entry have their default.
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
		errs = append(errs,
			fmt.Errorf("pod-max-pids %d is too few for a pod: give %d or more, or -1 for no limit", c.PodMaxPIDs, leastPodPIDs))
	}
	if c.PodMaxConnections != -1 && (c.PodMaxConnections < leastPodConnections || c.PodMaxConnections > math.MaxInt32) {
		errs = append(errs, fmt.Errorf("pod-max-connections %d is too few for a pod, or too many: give %d or more, or -1 "+
			"for no limit", c.PodMaxConnections, leastPodConnections))
	}
	if c.SwapBehavior != NoSwap && c.SwapBehavior != LimitedSwap {
		errs = append(errs, fmt.Errorf("swap-behavior %q is unknown: give %s or %s", c.SwapBehavior, NoSwap, LimitedSwap))
	}
	return errs
}
