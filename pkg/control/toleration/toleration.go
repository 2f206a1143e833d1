// Package toleration computes for how long pods stay with a device that has a taint (KEP-5055). The scheduler and the
// reconciler that evicts pods have to agree. Its Seconds are also those of nodes' taints.
//
// It is pure.
package toleration

import (
	"math"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Forever is the time of a toleration without an end.
const Forever time.Duration = math.MaxInt64

// maxSeconds is some hundred years, which a time.Duration can hold.
const maxSeconds = 9_000_000_000

// Seconds is the time of a toleration of so many seconds: none if they are less than zero, at most some hundred years.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), maxSeconds)) * time.Second
}

// Of returns how long after a taint was added it is tolerated, and whether it is tolerated at all. Of several
// tolerations the shortest counts, but for one without an end.
func Of(t *resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration) (stay time.Duration, tolerated bool) {
	for _, tol := range tolerations {
		if !resourceclaim.ToleratesTaint(tol, *t) {
			continue
		}
		if tol.TolerationSeconds == nil || tol.Effect == "" { // the API ignores the seconds of tolerations of other effects
			return Forever, true
		}
		seconds := Seconds(*tol.TolerationSeconds)
		if !tolerated || seconds < stay {
			stay, tolerated = seconds, true
		}
	}
	return stay, tolerated
}
