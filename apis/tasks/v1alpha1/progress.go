package v1alpha1

import "fmt"

// Attempts returns the number of attempts begun.
func Attempts(t *Task) int64 {
	n := int64(t.Status.EndedAttempts)
	for i := range t.Status.Attempts {
		if a := &t.Status.Attempts[i]; !a.Phase.Ended() && a.PodUID != "" {
			n++
		}
	}
	return n
}

// Outcome returns a phase as users see it: cancelled tasks and attempts have the phase Failed, and are Cancelled.
func Outcome(phase TaskPhase, reason string) string {
	if reason == ReasonCancelled {
		return reason
	}
	return string(phase)
}

// Indexes returns "completed/all" for an array, otherwise "".
func Indexes(t *Task) string {
	if t.Spec.Array == nil {
		return ""
	}
	done := int32(0)
	if t.Status.Array != nil {
		done = t.Status.Array.Completed
	}
	return fmt.Sprintf("%d/%d", done, t.Size())
}
