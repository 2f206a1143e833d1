package task

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// store writes the attempts into the status, and derives the other fields.
func (p *plan) store() {
	p.trim()
	slices.SortFunc(p.active, func(a, b tasks.TaskAttempt) int { return cmp.Compare(index(&a), index(&b)) })
	s := &p.Status
	s.Attempts = slices.Concat(p.ended, p.active)
	if p.spec.Array != nil {
		p.storeArray()
	} else {
		p.storeOne()
	}
	if s.Phase.Ended() {
		p.Again = 0
		if s.FinishedAt == nil {
			s.FinishedAt = new(metav1.NewTime(p.now))
		}
		p.expire()
		p.Expired = false // not before the end is recorded
		if p.Again == 0 && p.spec.TTLSecondsAfterFinished != nil {
			p.Again = time.Nanosecond
		}
	}
}

// trim removes the oldest ended attempts. Attempts of failed indexes stay longer, because users look for these.
func (p *plan) trim() {
	last := max(len(p.ended)-tasks.MaxAttempts, 0)
	old := slices.DeleteFunc(slices.Clone(p.ended[:last]), func(a tasks.TaskAttempt) bool {
		return a.Phase != tasks.TaskFailed || !p.failed.Has(index(&a))
	})
	p.ended = append(old[max(len(old)-tasks.MaxFailed, 0):], p.ended[last:]...)
}

func (p *plan) storeOne() {
	s := &p.Status
	if len(s.Attempts) > 0 {
		a := &s.Attempts[len(s.Attempts)-1]
		s.Node, s.PodName, s.ContainerID, s.ExitCode = a.Node, a.Pod, a.ContainerID, a.ExitCode
		s.ScheduledAt, s.StartedAt, s.Error, s.Phase = a.ScheduledAt, a.StartedAt, a.Message, a.Phase
		if a.Phase.Ended() {
			s.Reason, s.FinishedAt = a.Reason, a.FinishedAt
		}
	} else {
		s.Error = ""
	}
	if s.Phase == tasks.TaskPending && s.Error == "" {
		s.Error = p.blocked
		if n := len(p.ended); n > 0 {
			s.Error = fmt.Sprintf("attempt %d failed: %s", p.ended[n-1].Number, p.ended[n-1].Message)
		}
		if p.spec.Suspend && s.PodName == "" {
			s.Error = "the task is suspended"
		}
	}
	if p.cancelled {
		s.Phase, s.Reason, s.Error = tasks.TaskFailed, tasks.ReasonCancelled, cancelledMessage
	} else if p.prevented != "" {
		s.Phase, s.Reason, s.Error = tasks.TaskFailed, p.reason, p.prevented
	}
}

const cancelledMessage = "the task was cancelled"

func (p *plan) storeArray() {
	s := &p.Status
	s.Array = &tasks.TaskArrayStatus{
		Completed: int32(p.completed.Count()), Failed: int32(p.failed.Count()),
		CompletedIndexes: p.completed.String(), FailedIndexes: p.failed.String(), Nodes: p.nodes, Targets: p.targets,
	}
	s.Phase, s.Error, s.Reason = tasks.TaskPending, p.blocked, ""
	if p.spec.Suspend && len(s.Attempts) == 0 {
		s.Error = "the task is suspended"
	}
	if s.Array.Completed+s.Array.Failed > 0 {
		s.Phase = tasks.TaskRunning // running indexes may end before they are observed
	}
	for i := range p.active {
		a := &p.active[i]
		switch a.Phase {
		case tasks.TaskRunning:
			s.Array.Running++
			s.Phase = tasks.TaskRunning
		case tasks.TaskScheduled:
			if s.Phase == tasks.TaskPending {
				s.Phase = tasks.TaskScheduled
			}
		}
		if s.Error == "" && a.Message != "" {
			s.Error = fmt.Sprintf("index %d: %s", index(a), a.Message)
		}
	}
	s.Array.Pending = int32(p.size()) - s.Array.Completed - s.Array.Failed - s.Array.Running
	if s.StartedAt == nil {
		for i := range s.Attempts {
			if at := s.Attempts[i].StartedAt; at != nil && (s.StartedAt == nil || at.Before(s.StartedAt)) {
				s.StartedAt = at.DeepCopy()
			}
		}
	}
	switch {
	case p.prevented != "":
		s.Phase, s.Reason, s.Error = tasks.TaskFailed, p.reason, p.prevented
	case int(s.Array.Completed) == p.size() && p.size() > 0:
		s.Phase, s.Error = tasks.TaskCompleted, ""
	case p.cancelled:
		s.Phase, s.Reason, s.Error = tasks.TaskFailed, tasks.ReasonCancelled, cancelledMessage
	case int(s.Array.Completed+s.Array.Failed) == p.size() && p.size() > 0:
		s.Phase, s.Reason = tasks.TaskFailed, tasks.ReasonIndexesFailed
		s.Error = fmt.Sprintf("%d of %d indexes failed: %s", s.Array.Failed, p.size(), shorten(s.Array.FailedIndexes))
		if at := slices.IndexFunc(p.ended, func(a tasks.TaskAttempt) bool {
			return a.Phase == tasks.TaskFailed && p.failed.Has(index(&a))
		}); at >= 0 {
			s.Error += fmt.Sprintf("; index %d: %s", index(&p.ended[at]), p.ended[at].Message)
		}
	}
}

func shorten(list string) string {
	if len(list) > 100 {
		return list[:100] + "..."
	}
	return list
}
