// Package toleration computes how long pods may keep a tainted device (KEP-5055), for both the scheduler and the
// reconciler that evicts pods. Seconds also applies to node taints.
//
// Its invariant: all functions are pure.
package toleration

import (
	"math"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Forever is the duration of a toleration without tolerationSeconds.
const Forever time.Duration = math.MaxInt64

// maxSeconds is about 285 years, which a time.Duration can hold.
const maxSeconds = 9_000_000_000

// Seconds converts tolerationSeconds to a duration from 0 to about 285 years.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), maxSeconds)) * time.Second
}

// Of returns how long a taint is tolerated after it was added, and whether it is tolerated at all. If several
// tolerations match, the shortest applies, except that one without an end wins.
func Of(t *resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration) (stay time.Duration, tolerated bool) {
	for _, tol := range tolerations {
		if !resourceclaim.ToleratesTaint(tol, *t) {
			continue
		}
		if tol.TolerationSeconds == nil || tol.Effect == "" { // the API ignores the seconds of other effects
			return Forever, true
		}
		seconds := Seconds(*tol.TolerationSeconds)
		if !tolerated || seconds < stay {
			stay, tolerated = seconds, true
		}
	}
	return stay, tolerated
}
