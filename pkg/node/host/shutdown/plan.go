package shutdown

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

// group is a set of pods that end together, and the time they have.
type group struct {
	period time.Duration
	pods   []*corev1.Pod
}

// groups divides pods by priority. periods are ordered by priority. Each period covers the priorities from its own
// up to the next period's; the first also covers lower ones. Groups without pods are omitted.
func groups(periods []config.ShutdownPeriod, pods []*corev1.Pod) (out []group) {
	all := make([]group, len(periods))
	for _, p := range pods {
		at := 0
		for i := range periods {
			if p.Spec.Priority != nil && *p.Spec.Priority >= periods[i].Priority ||
				p.Spec.Priority == nil && periods[i].Priority <= 0 {
				at = i
			}
		}
		all[at].pods = append(all[at].pods, p)
	}
	for i := range all {
		if all[i].period = periods[i].Period; len(all[i].pods) > 0 {
			out = append(out, all[i])
		}
	}
	return out
}

func total(periods []config.ShutdownPeriod) (sum time.Duration) {
	for _, p := range periods {
		sum += p.Period
	}
	return sum
}

// within shortens the periods in proportion if their sum exceeds allowed.
func within(periods []config.ShutdownPeriod, allowed time.Duration) []config.ShutdownPeriod {
	sum := total(periods)
	if sum <= allowed {
		return periods
	}
	out := make([]config.ShutdownPeriod, len(periods))
	for i, p := range periods {
		out[i] = config.ShutdownPeriod{
			Priority: p.Priority, Period: time.Duration(float64(p.Period) * float64(allowed) / float64(sum)),
		}
	}
	return out
}

// reserve returns the part at the end of a period, after all containers have ended, that is for unmounting volumes
// and writing statuses.
func reserve(period time.Duration) time.Duration { return min(period/10, time.Second) }
