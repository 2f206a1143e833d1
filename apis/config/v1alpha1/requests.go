package v1alpha1

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Requests limits requests to the API. Names and meaning are upstream's.
type Requests struct {
	// The sum of MaxInflight and MaxMutatingInflight is the maximum number of concurrent requests. Priority levels
	// share it.
	MaxInflight         int
	MaxMutatingInflight int
	// RequestTimeout is the timeout of requests other than watches and streams. MinRequestTimeout is the minimum
	// duration of a watch in seconds; the maximum is twice that. A watch with a timeout from the client uses that.
	RequestTimeout    time.Duration
	MinRequestTimeout int
	// GoawayChance is the fraction of requests after which an HTTP/2 client must reconnect, so that load balancers
	// can redistribute clients.
	GoawayChance float64
	// ShutdownDelay is how long a stopping server keeps serving, while /readyz fails.
	ShutdownDelay time.Duration
}

// Tolerations are the default times, in seconds, for which pods stay on a node that is not ready or unreachable.
type Tolerations struct {
	NotReadySeconds    int64
	UnreachableSeconds int64
}

// Bounds of Requests.
const (
	maxInflight       = 100_000
	maxRequestTimeout = time.Hour
	maxWatch          = 7 * 24 * 3600
	maxGoawayChance   = 0.02 // as upstream
	maxShutdownDelay  = time.Minute
)

func (r Requests) validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(r.MaxInflight < 0 || r.MaxInflight > maxInflight, "max-requests-inflight %d is not within 0 to %d",
		r.MaxInflight, maxInflight)
	refuse(r.MaxMutatingInflight < 0 || r.MaxMutatingInflight > maxInflight,
		"max-mutating-requests-inflight %d is not within 0 to %d", r.MaxMutatingInflight, maxInflight)
	refuse(r.MaxInflight+r.MaxMutatingInflight == 0,
		"max-requests-inflight and max-mutating-requests-inflight are both 0: no request could execute")
	refuse(r.RequestTimeout < time.Second || r.RequestTimeout > maxRequestTimeout,
		"request-timeout %s is not within 1s to %s", r.RequestTimeout, maxRequestTimeout)
	refuse(r.MinRequestTimeout < 1 || r.MinRequestTimeout > maxWatch,
		"min-request-timeout %d is not within 1 to %d seconds", r.MinRequestTimeout, maxWatch)
	refuse(!(r.GoawayChance >= 0 && r.GoawayChance <= maxGoawayChance),
		"goaway-chance %v can not be less than 0 or greater than %v", r.GoawayChance, maxGoawayChance)
	refuse(r.ShutdownDelay < 0 || r.ShutdownDelay > maxShutdownDelay, "shutdown-delay-duration %s is not within 0s to %s",
		r.ShutdownDelay, maxShutdownDelay)
	return errors.Join(errs...)
}

func (t Tolerations) validate() error {
	var errs []error
	if t.NotReadySeconds < 0 {
		errs = append(errs, fmt.Errorf("default-not-ready-toleration-seconds %d is negative", t.NotReadySeconds))
	}
	if t.UnreachableSeconds < 0 {
		errs = append(errs, fmt.Errorf("default-unreachable-toleration-seconds %d is negative", t.UnreachableSeconds))
	}
	return errors.Join(errs...)
}

func (r *Requests) options(f *pflag.FlagSet) {
	f.IntVar(&r.MaxInflight, "max-requests-inflight", 400,
		"with --max-mutating-requests-inflight, the number of requests that execute at a time, which priority levels share")
	f.IntVar(&r.MaxMutatingInflight, "max-mutating-requests-inflight", 200, "see --max-requests-inflight")
	f.DurationVar(&r.RequestTimeout, "request-timeout", time.Minute,
		"maximum duration of requests other than watches and streams")
	f.IntVar(&r.MinRequestTimeout, "min-request-timeout", 1800,
		"minimum duration of a watch in seconds, and half of its maximum, if the client names none")
	f.Float64Var(&r.GoawayChance, "goaway-chance", 0,
		"fraction of requests, at most 0.02, after which an HTTP/2 client is asked to connect again, to another server "+
			"behind a load balancer")
	f.DurationVar(&r.ShutdownDelay, "shutdown-delay-duration", 0,
		"how long a server that is stopped still serves while /readyz fails, at most 1m")
}

func (t *Tolerations) options(f *pflag.FlagSet) {
	f.Int64Var(&t.NotReadySeconds, "default-not-ready-toleration-seconds", 300,
		"seconds that a pod without such a toleration stays on a node that is not ready")
	f.Int64Var(&t.UnreachableSeconds, "default-unreachable-toleration-seconds", 300,
		"seconds that a pod without such a toleration stays on a node that cannot be reached")
}
