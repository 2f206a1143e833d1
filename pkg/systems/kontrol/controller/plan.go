package controller

import (
	"fmt"
	"time"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/window"
)

// Observed is the input of Plan: a Resource that targets a cluster, and what is known about it.
type Observed struct {
	Resource *kontrol.Resource
	Cluster  *kontrol.Cluster // nil if it does not exist
	// Applied is nil before the first attempt; Current is nil before the object's state was first recorded.
	Applied *kontrol.Applied
	Current *kontrol.Current
	// Other is the Resource that has precedence for the same object; empty for none.
	Other string
	// Invalid is the error of rendering the cluster's overrides; empty if they are valid.
	Invalid string
	// Waits is the message, and WaitsReason the reason, of a wait for another Resource; empty for none.
	Waits, WaitsReason string
	// WaitsOn is the name of that Resource.
	WaitsOn string
	Tries   Tries
}

// Tries counts the failures since the last success, and the recent drift corrections.
type Tries struct {
	Generation  int64
	Failures    int
	Last, Next  time.Time // last failure, next attempt
	Outage      uint64    // the cluster's outage count at the last failure
	Seen        string    // seenOf at the last failure
	Corrections int
	Corrected   time.Time // last correction
}

func seenOf(c *kontrol.Current) string {
	if c == nil || c.Time == nil {
		return ""
	}
	return c.Time.UTC().Format(time.RFC3339Nano)
}

// next returns when to try again. If the object's record changed since the last failure, the cause may be gone:
// the next attempt comes early, changedPause after the failure.
func (t Tries) next(c *kontrol.Current) time.Time {
	if soon := t.Last.Add(changedPause); t.Seen != seenOf(c) && soon.Before(t.Next) {
		return soon
	}
	return t.Next
}

// after returns the tries without failures from before the cluster's last outage, so that they are retried at once.
func (t Tries) after(outage uint64) Tries {
	if t.Outage != outage {
		t.Failures, t.Next = 0, time.Time{}
	}
	return t
}

// Step is Plan's decision.
type Step struct {
	// Apply requests an apply. Correct takes back fields that were applied before and drifted. Prune removes
	// fields that others added.
	Apply, Correct, Prune bool
	// Status, Reason and Error are recorded if Apply is false and Status is set.
	Status        kontrol.ApplyStatus
	Reason, Error string
	// WaitsFor is the Resource that the apply waits for.
	WaitsFor string
	// Again is the time until the next Plan; 0 for not before a change.
	Again time.Duration
}

const (
	// pendingPatience is how long to wait for the watch to show an applied object before applying it again.
	pendingPatience = 30 * time.Second
	// changedPause is the least pause between failures on an object that other clients keep changing.
	changedPause = 5 * time.Second
	// freeCorrections is how many drift corrections within correctionWindow come without a pause.
	freeCorrections  = 5
	correctionWindow = 10 * time.Minute
)

// Plan decides what to do with a Resource on a cluster. It is pure.
func Plan(o Observed, now time.Time) Step {
	r, a, c := o.Resource, o.Applied, o.Current
	due := a == nil || a.Generation != r.Generation || a.Variant != placement.Variant(r, o.Cluster) ||
		a.Status == kontrol.ApplyFailed || a.Status == kontrol.ApplyConflict
	drifted := !due && c != nil && c.DriftCount > 0 && c.ResourceUID == string(r.UID)
	unseen := !due &&
		(c == nil ||
			c.Reason == "" && c.DriftCount == 0 && (!c.Present || c.Generation != a.Generation || c.Revision != a.Revision))
	waiting := func(reason, text string) Step {
		if !due {
			return Step{}
		}
		return Step{Status: kontrol.ApplyWaiting, Reason: reason, Error: text}
	}
	if o.Cluster == nil {
		return waiting(kontrol.ReasonNoCluster, "the cluster does not exist: create it, or change the Resource")
	}
	if o.Other != "" {
		return Step{Status: kontrol.ApplyConflict, Reason: kontrol.ReasonSameObject,
			Error: fmt.Sprintf("Resource %s already has the same object: delete one of them", o.Other)}
	}
	if due && o.Invalid != "" {
		return Step{Status: kontrol.ApplyFailed, Reason: kontrol.ReasonOverride, Error: o.Invalid}
	}
	if r.Spec.Suspend || o.Cluster.Spec.Suspend {
		return waiting(kontrol.ReasonSuspended, "spec.suspend is true: set it to false to apply")
	}
	if ok, why := state.Reachable(o.Cluster); !ok {
		return waiting(kontrol.ReasonUnreachable, why)
	}
	if r.Spec.Approval == kontrol.ApprovalManual && r.Status.Approved != r.Generation {
		return waiting(kontrol.ReasonApproval,
			fmt.Sprintf("generation %d waits for approval: coracle kontrol approve %s", r.Generation, r.Name))
	}
	if w := window.Of(r.Spec.Windows, now); !w.Open && (due || unseen || drifted && r.Spec.Mode != kontrol.ModeReport) {
		step := waiting(kontrol.ReasonWindow, w.Message())
		step.Again = w.Wait(now)
		return step
	}
	if due && o.Waits != "" {
		step := waiting(o.WaitsReason, o.Waits)
		step.WaitsFor = o.WaitsOn
		return step
	}
	if next := o.Tries.next(c); o.Tries.Generation == r.Generation && now.Before(next) {
		if due || drifted {
			return Step{Again: next.Sub(now)}
		}
	}
	switch {
	case due:
		return Step{Apply: true}
	case drifted && r.Spec.Mode != kontrol.ModeReport:
		if o.Tries.Corrections >= freeCorrections && now.Sub(o.Tries.Corrected) < correctionWindow {
			pause := backoff.Pause(time.Second, 5*time.Minute, 1+o.Tries.Corrections-freeCorrections)
			if left := o.Tries.Corrected.Add(pause).Sub(now); left > 0 {
				return Step{Again: left}
			}
		}
		return Step{Apply: true, Correct: true, Prune: r.Spec.Mode == kontrol.ModeEnforce}
	case unseen:
		if a.AppliedAt == nil {
			return Step{Apply: true}
		}
		if left := a.AppliedAt.Add(pendingPatience).Sub(now); left > 0 {
			return Step{Again: left}
		}
		return Step{Apply: true}
	}
	return Step{}
}
