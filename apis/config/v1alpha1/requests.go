package v1alpha1

import (
	"errors"
	"fmt"
	"time"
)

// Requests limits what requests take. Names and meaning are upstream's.
type Requests struct {
	// MaxInflight and MaxMutatingInflight are together the requests that execute at a time, which priority levels share.
	MaxInflight         int `mapstructure:"max-requests-inflight"`
	MaxMutatingInflight int `mapstructure:"max-mutating-requests-inflight"`
	// RequestTimeout limits a request other than a watch or stream. A watch lasts MinRequestTimeout to twice that, in
	// seconds, unless the client says how long.
	RequestTimeout    time.Duration `mapstructure:"request-timeout"`
	MinRequestTimeout int           `mapstructure:"min-request-timeout"`
	// GoawayChance is the fraction of requests after which an HTTP/2 client is asked to connect again, for load balancers.
	GoawayChance float64 `mapstructure:"goaway-chance"`
	// ShutdownDelay is how long a server that is stopped still serves, while /readyz fails.
	ShutdownDelay time.Duration `mapstructure:"shutdown-delay-duration"`
}

// Tolerations are how long, in seconds, pods that do not say it stay on a node that is not ready or cannot be reached.
type Tolerations struct {
	NotReadySeconds    int64 `mapstructure:"default-not-ready-toleration-seconds"`
	UnreachableSeconds int64 `mapstructure:"default-unreachable-toleration-seconds"`
}

// The limits of Requests.
const (
	maxInflight       = 100_000
	maxRequestTimeout = time.Hour
	maxWatch          = 7 * 24 * 3600
	maxGoawayChance   = 0.02 // upstream's
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
