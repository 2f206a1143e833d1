package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// The delay before a failed pod is replaced starts at backoffFirst and doubles with each consecutive failure, up
// to backoffMost.
const (
	backoffFirst = 10 * time.Second
	backoffMost  = 10 * time.Minute
)

// Failures is the back-off state of a job without a limit per index.
type Failures struct {
	// InARow is the number of pods that have failed since the last success.
	InARow int32
	// Last is when the latest of them failed.
	Last time.Time
}

// after returns the state after further pods have ended.
func (f Failures) after(succeeded, failed []*corev1.Pod) Failures {
	if len(succeeded)+len(failed) == 0 {
		return f
	}
	if len(succeeded) > 0 {
		f = Failures{}
		success := finishedAt(slices.MaxFunc(succeeded, byFinish))
		failed = slices.DeleteFunc(slices.Clone(failed), func(p *corev1.Pod) bool { return !finishedAt(p).After(success) })
	}
	f.InARow += int32(len(failed))
	for _, p := range failed {
		if at := finishedAt(p); at.After(f.Last) {
			f.Last = at
		}
	}
	return f
}

func (f Failures) left(now time.Time) time.Duration {
	if f.InARow == 0 {
		return 0
	}
	return max(f.Last.Add(backoff.Pause(backoffFirst, backoffMost, int(f.InARow))).Sub(now), 0)
}

func byFinish(a, b *corev1.Pod) int { return finishedAt(a).Compare(finishedAt(b)) }

// finishedAt returns when the last container of a pod terminated or, if that is unknown, when the pod ceased to be
// ready or was deleted.
func finishedAt(p *corev1.Pod) time.Time {
	if at, ok := containersFinishedAt(p); ok {
		return at
	}
	if c := podstate.Condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse &&
		!c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if p.DeletionTimestamp != nil {
		at := p.DeletionTimestamp.Time
		if p.DeletionGracePeriodSeconds != nil {
			at = at.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
		}
		return at
	}
	return p.CreationTimestamp.Time
}

func containersFinishedAt(p *corev1.Pod) (last time.Time, ok bool) {
	statuses := p.Status.ContainerStatuses
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if i := slices.IndexFunc(p.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == c.Name
		}); i >= 0 {
			statuses = append(slices.Clip(statuses), p.Status.InitContainerStatuses[i])
		}
	}
	for i := range statuses {
		end := statuses[i].State.Terminated
		if end == nil || end.FinishedAt.IsZero() {
			return last, false
		}
		if end.FinishedAt.After(last) {
			last = end.FinishedAt.Time
		}
	}
	return last, len(statuses) > 0
}
