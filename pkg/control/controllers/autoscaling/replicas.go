package autoscaling

import (
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelpers "k8s.io/component-helpers/resource"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Defaults of upstream's kube-controller-manager.
const (
	tolerance      = 0.1
	initialization = 5 * time.Minute  // --horizontal-pod-autoscaler-cpu-initialization-period
	readinessDelay = 30 * time.Second // --horizontal-pod-autoscaler-initial-readiness-delay
)

// Sample is the metric value of one pod, in thousandths.
type Sample struct {
	At     time.Time
	Window time.Duration
	Value  int64
}

// tolerances are the relative deviations from the target that cause no scaling.
type tolerances struct{ down, up float64 }

func (t tolerances) within(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// target is the desired average value per pod: an amount in thousandths, or a percentage of the requests.
type target struct {
	amount      int64
	utilization int32 // percent; 0: use amount
}

// proposal is the replica count that a metric suggests, and the metric's value.
type proposal struct {
	replicas    int32
	average     int64
	utilization int32
}

var (
	errNoPods    = errors.New("no pods returned by selector while calculating replica count")
	errNoSamples = errors.New("did not receive metrics for targeted pods (pods might be unready)")
	errNoMatch   = errors.New("no metrics returned matched known pods")
)

// perPod computes the replica count for a per-pod metric as upstream's replica calculator does: pods that are not
// ready or have no sample are assumed to have the value that makes the change smaller.
func perPod(pods []*corev1.Pod, samples map[string]Sample, current int32, to target, of corev1.ResourceName,
	inContainer string, allowed tolerances, now time.Time) (proposal, error) {
	if len(pods) == 0 {
		return proposal{}, errNoPods
	}
	values := make(map[string]int64, len(pods))
	var ready int
	var unready, missing []string
	for _, p := range pods {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if p.Status.Phase == corev1.PodPending {
			unready = append(unready, p.Name)
			continue
		}
		s, ok := samples[p.Name]
		switch {
		case !ok:
			missing = append(missing, p.Name)
		case of == corev1.ResourceCPU && starting(p, s, now):
			unready = append(unready, p.Name)
		default:
			ready++
			values[p.Name] = s.Value
		}
	}
	if len(values) == 0 {
		return proposal{}, errNoSamples
	}
	requests := map[string]int64{}
	if to.utilization > 0 {
		var err error
		if requests, err = requested(pods, inContainer, of); err != nil {
			return proposal{}, err
		}
	}
	ratio, out, err := to.ratio(values, requests)
	if err != nil {
		return proposal{}, err
	}
	out.replicas = current
	withUnready := len(unready) > 0 && ratio > 1
	if !withUnready && len(missing) == 0 {
		if !allowed.within(ratio) {
			out.replicas = count(ratio * float64(ready))
		}
		return out, nil
	}
	for _, name := range missing {
		switch {
		case ratio > 1:
			values[name] = 0
		case ratio < 1 && to.utilization > 0:
			values[name] = clamp64(float64(requests[name]) * float64(max(100, to.utilization)) / 100)
		case ratio < 1:
			values[name] = to.amount
		}
	}
	if withUnready {
		for _, name := range unready {
			values[name] = 0
		}
	}
	again, _, err := to.ratio(values, requests)
	if err != nil {
		return out, err
	}
	if allowed.within(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return out, nil
	}
	if n := count(again * float64(len(values))); again < 1 && n <= current || again > 1 && n >= current {
		out.replicas = n
	}
	return out, nil
}

// starting reports whether a pod is too young for its CPU usage to reflect its load.
func starting(p *corev1.Pod, s Sample, now time.Time) bool {
	c := podstate.Condition(p, corev1.PodReady)
	if c == nil || p.Status.StartTime == nil {
		return true
	}
	if p.Status.StartTime.Add(initialization).After(now) {
		return c.Status == corev1.ConditionFalse || s.At.Before(c.LastTransitionTime.Add(s.Window))
	}
	return c.Status == corev1.ConditionFalse && p.Status.StartTime.Add(readinessDelay).After(c.LastTransitionTime.Time)
}

func (to target) ratio(values, requests map[string]int64) (float64, proposal, error) {
	var total, request float64
	entries := 0
	for name, v := range values {
		if to.utilization > 0 {
			r, ok := requests[name]
			if !ok {
				continue
			}
			request += float64(r)
		}
		total += float64(v)
		entries++
	}
	if entries == 0 || to.utilization > 0 && request == 0 {
		return 0, proposal{}, errNoMatch
	}
	average := clamp64(math.Trunc(total / float64(entries)))
	if to.utilization == 0 {
		return float64(average) / float64(to.amount), proposal{average: average}, nil
	}
	utilization := clamp(math.Trunc(total * 100 / request))
	return float64(utilization) / float64(to.utilization), proposal{average: average, utilization: utilization}, nil
}

// requested returns each pod's request of a resource, in thousandths, for all containers or for one.
func requested(pods []*corev1.Pod, inContainer string, of corev1.ResourceName) (map[string]int64, error) {
	out := make(map[string]int64, len(pods))
	for _, p := range pods {
		if inContainer == "" && resourcehelpers.IsPodLevelRequestsSet(p) {
			q, ok := resourcehelpers.PodRequests(p, resourcehelpers.PodResourcesOptions{})[of]
			if !ok {
				return nil, fmt.Errorf("missing pod-level request for %s in Pod %s", of, p.Name)
			}
			out[p.Name] = q.MilliValue()
			continue
		}
		var sum int64
		found := false
		add := func(c *corev1.Container) error {
			if inContainer != "" && inContainer != c.Name {
				return nil
			}
			q, ok := c.Resources.Requests[of]
			if !ok {
				return fmt.Errorf("missing request for %s in container %s of Pod %s", of, c.Name, p.Name)
			}
			sum, found = sum+q.MilliValue(), true
			return nil
		}
		for i := range p.Spec.Containers {
			if err := add(&p.Spec.Containers[i]); err != nil {
				return nil, err
			}
		}
		for i := range p.Spec.InitContainers {
			if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil &&
				*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				if err := add(c); err != nil {
					return nil, err
				}
			}
		}
		if inContainer != "" && !found {
			return nil, fmt.Errorf("container %s not found in Pod %s", inContainer, p.Name)
		}
		out[p.Name] = sum
	}
	return out, nil
}

// count rounds up to a replica count from 0 to math.MaxInt32.
func count(n float64) int32 { return max(clamp(math.Ceil(n)), 0) }

func clamp(n float64) int32 {
	return int32(min(max(n, math.MinInt32), math.MaxInt32)) // NaN gives an arbitrary number, which the limits bound
}

func clamp64(n float64) int64 {
	switch {
	case n >= math.MaxInt64:
		return math.MaxInt64
	case n <= math.MinInt64:
		return math.MinInt64
	}
	return int64(n)
}
