package pod

import (
	"cmp"
	"math"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

type member struct {
	name, id   string
	have, want amounts
}

// resizeStep changes one cgroup: the instance's, or the pod's if of is empty.
type resizeStep struct {
	of      member
	amounts amounts
	pod     runtime.PodLimits // only the limits that change
	// attempt means that the step may fail; a later step repeats it.
	attempt bool
}

// resizeSteps returns the changes to a pod's cgroups in an order in which no container ever has more than its pod:
// memory first, then CPU. For each, the pod grows before its containers change and shrinks after them, and
// containers that shrink come before containers that grow. It is a pure function.
func resizeSteps(have, want runtime.PodLimits, members []member, unsure bool) (steps []resizeStep) {
	if unsure {
		return resizeUnsure(want, members)
	}
	members = append([]member(nil), members...)
	pod := func(l runtime.PodLimits, changes bool) {
		if changes {
			steps = append(steps, resizeStep{pod: l})
		}
	}
	containers := func(differ func(a, b amounts) bool, limit func(amounts) int64, set func(to *amounts, from amounts)) {
		for _, shrinks := range []bool{true, false} {
			for i := range members {
				m := &members[i]
				if less := noLimit(limit(m.want)) < noLimit(limit(m.have)); less == shrinks && differ(m.have, m.want) {
					set(&m.have, m.want)
					steps = append(steps, resizeStep{of: *m, amounts: m.have})
				}
			}
		}
	}
	memory := runtime.PodLimits{MemoryBytes: orUnlimited(want.MemoryBytes)}
	change := cmp.Compare(noLimit(want.MemoryBytes), noLimit(have.MemoryBytes))
	pod(memory, change > 0)
	containers(func(a, b amounts) bool { return a.MemoryLimit != b.MemoryLimit || a.MemoryRequest != b.MemoryRequest },
		func(a amounts) int64 { return a.MemoryLimit },
		func(to *amounts, from amounts) {
			to.MemoryLimit, to.MemoryRequest = from.MemoryLimit, from.MemoryRequest
		})
	pod(memory, change < 0)

	time, weight := runtime.PodLimits{CPUQuota: orUnlimited(want.CPUQuota)}, runtime.PodLimits{CPUShares: want.CPUShares}
	change = cmp.Compare(noLimit(want.CPUQuota), noLimit(have.CPUQuota))
	pod(time, change > 0)
	pod(weight, want.CPUShares > have.CPUShares)
	containers(func(a, b amounts) bool {
		return a.CPULimit != b.CPULimit || a.CPURequest != b.CPURequest || a.Shares != b.Shares
	}, func(a amounts) int64 { return a.CPULimit },
		func(to *amounts, from amounts) {
			to.CPULimit, to.CPURequest, to.Shares = from.CPULimit, from.CPURequest, from.Shares
		})
	pod(weight, want.CPUShares < have.CPUShares)
	pod(time, change < 0)
	return steps
}

// resizeUnsure is resizeSteps for cgroups in an unknown state. It sets everything, the pod's limits first. If the
// kernel refuses a lower one, containers may still have more, so it is set again after they have shrunk.
func resizeUnsure(want runtime.PodLimits, members []member) (steps []resizeStep) {
	limits := []runtime.PodLimits{{MemoryBytes: orUnlimited(want.MemoryBytes)}, {CPUQuota: orUnlimited(want.CPUQuota)}}
	for _, l := range limits {
		steps = append(steps, resizeStep{pod: l, attempt: true})
	}
	for _, m := range members {
		steps = append(steps, resizeStep{of: m, amounts: m.want})
	}
	for _, l := range append(limits, runtime.PodLimits{CPUShares: want.CPUShares}) {
		steps = append(steps, resizeStep{pod: l})
	}
	return steps
}

func noLimit(n int64) int64 { return cmp.Or(n, math.MaxInt64) }

// orUnlimited turns the limit 0, none, into the value that removes a limit.
func orUnlimited(limit int64) int64 { return cmp.Or(limit, runtime.Unlimited) }

func merge(l, set runtime.PodLimits) runtime.PodLimits {
	l.CPUShares, l.CPUQuota, l.MemoryBytes = cmp.Or(set.CPUShares, l.CPUShares), cmp.Or(set.CPUQuota, l.CPUQuota), cmp.Or(
		set.MemoryBytes, l.MemoryBytes)
	l.CPUQuota, l.MemoryBytes = max(l.CPUQuota, 0), max(l.MemoryBytes, 0)
	return l
}
