package v1alpha1

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Shutdown is the time that pods have to terminate when the machine shuts down (KEP-2000, KEP-2712). The shutdown
// is delayed only where systemd-logind runs.
type Shutdown struct {
	// ShutdownGracePeriod is the time for all pods; 0 disables the delay. ShutdownGracePeriodCriticalPods is the
	// part of it reserved for critical pods, which terminate last.
	ShutdownGracePeriod             time.Duration
	ShutdownGracePeriodCriticalPods time.Duration
	// ShutdownGracePeriodByPodPriority are entries "priority=duration" that replace the two fields above. See
	// ShutdownPeriods.
	ShutdownGracePeriodByPodPriority []string
}

// ShutdownPeriod is the time that pods of a priority have to terminate.
type ShutdownPeriod struct {
	// Priority is the lowest priority of these pods.
	Priority int32
	Period   time.Duration
}

const (
	// lowestCritical is the priority of system-cluster-critical.
	lowestCritical = 2_000_000_000
	// longestShutdown is the maximum sum of all periods, mostShutdownPeriods their maximum number.
	longestShutdown     = time.Hour
	mostShutdownPeriods = 64
)

// ShutdownPeriods returns the periods in the order in which pods terminate, lowest priority first, or none if
// shutdowns are not delayed.
func (s Shutdown) ShutdownPeriods() ([]ShutdownPeriod, error) {
	if len(s.ShutdownGracePeriodByPodPriority) > 0 {
		return parseShutdownPeriods(s.ShutdownGracePeriodByPodPriority)
	}
	all, critical := s.ShutdownGracePeriod, s.ShutdownGracePeriodCriticalPods
	switch {
	case all < 0 || all > longestShutdown:
		return nil, fmt.Errorf("shutdown-grace-period %s is not within 0 and %s", all, longestShutdown)
	case all == 0:
		return nil, nil
	case critical < 0 || critical > all:
		return nil, fmt.Errorf("shutdown-grace-period-critical-pods %s is not within 0 and shutdown-grace-period, %s, of "+
			"which it is a part", critical, all)
	}
	return []ShutdownPeriod{{0, all - critical}, {lowestCritical, critical}}, nil
}

func parseShutdownPeriods(entries []string) (out []ShutdownPeriod, err error) {
	const option = "shutdown-grace-period-by-pod-priority"
	if len(entries) > mostShutdownPeriods {
		return nil, fmt.Errorf("%s has %d entries: at most %d", option, len(entries), mostShutdownPeriods)
	}
	var total time.Duration
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		priority, badPriority := strconv.ParseInt(strings.TrimSpace(name), 10, 32)
		period, badPeriod := time.ParseDuration(strings.TrimSpace(value))
		if !ok || errors.Join(badPriority, badPeriod) != nil || period < 0 || period > longestShutdown {
			return nil, fmt.Errorf("%s %q is not of the form 100000=30s: a priority and the time in which its pods end", option,
				entry)
		}
		if slices.ContainsFunc(out, func(p ShutdownPeriod) bool { return p.Priority == int32(priority) }) {
			return nil, fmt.Errorf("%s has the priority %d twice", option, priority)
		}
		out, total = append(out, ShutdownPeriod{int32(priority), period}), total+period
	}
	if total > longestShutdown {
		return nil, fmt.Errorf("%s is %s in all: at most %s", option, total, longestShutdown)
	}
	if total == 0 {
		return nil, nil
	}
	slices.SortFunc(out, func(a, b ShutdownPeriod) int { return cmp.Compare(a.Priority, b.Priority) })
	return out, nil
}

func (s *Shutdown) options(f *pflag.FlagSet) {
	f.DurationVar(&s.ShutdownGracePeriod, "shutdown-grace-period", 30*time.Second,
		"how long systemd-logind is asked to delay a shutdown of the machine until pods have ended; 0 disables it")
	f.DurationVar(&s.ShutdownGracePeriodCriticalPods, "shutdown-grace-period-critical-pods", 10*time.Second,
		"part of --shutdown-grace-period that is kept for critical pods, which end last")
	f.StringSliceVar(&s.ShutdownGracePeriodByPodPriority, "shutdown-grace-period-by-pod-priority", nil,
		"priority=duration, such as 0=20s,1000000=10s, instead of the two above: pods of the lowest priority end first")
}
