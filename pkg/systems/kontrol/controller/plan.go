package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/window"
)

// Observed is what Plan goes by: a Resource that should be on a cluster.
type Observed struct {
	Resource *kontrol.Resource
	Cluster  *kontrol.Cluster // nil if there is none of the name
	// Applied is nil if nothing of this Resource was ever attempted there, Current if nothing was seen.
	Applied *kontrol.Applied
	Current *kontrol.Current
	// Other is the Resource that is about the same object, and had it first; empty for none.
	Other string
	// Invalid says why the overrides for the cluster cannot be made; empty if they can.
	Invalid string
	// Waits says what has to come first; empty for nothing.
	Waits, WaitsReason string
	// WaitsOn is the Resource that it waits for.
	WaitsOn string
	// Tries is what was tried before.
	Tries Tries
}

// Tries are the attempts since the last success, and the corrections of late.
type Tries struct {
	Generation  int64
	Failures    int
	Last, Next  time.Time // of the last failure, and of the next attempt
	Outage      uint64    // the last of the cluster before the last failure
	Seen        string    // what was known of the object then
	Corrections int
	Corrected   time.Time // the last
}

// seenOf identifies what is recorded of an object.
func seenOf(c *kontrol.Current) string {
	if c == nil || c.Time == nil {
		return ""
	}
	return c.Time.UTC().Format(time.RFC3339Nano)
}

// next returns when to try again: soon if the object has changed since the last failure, or the kind is there by now,
// as that may have been the reason.
func (t Tries) next(c *kontrol.Current) time.Time {
	if soon := t.Last.Add(changedPause); t.Seen != seenOf(c) && soon.Before(t.Next) {
		return soon
	}
	return t.Next
}

// Step is what to do.
type Step struct {
	// Apply applies the object; Correct says that drift is the reason, so that fields that were applied before are taken
	// back, and Prune that what others added is removed.
	Apply, Correct, Prune bool
	// Status, Reason and Error are recorded if Apply is false and Status is set.
	Status        kontrol.ApplyStatus
	Reason, Error string
	// Again is when to look again; 0 for when something changes.
	Again time.Duration
}

const (
	// pendingPatience is how long what was applied may go unseen before it is applied again.
	pendingPatience = 30 * time.Second
	// resync is how often all Resources are compared with what was applied.
	resync = 30 * time.Second
	// changedPause is the least time between two failures of what others keep changing on the cluster.
	changedPause = 5 * time.Second
	// freeCorrections is how many corrections within correctionWindow are made without a pause.
	freeCorrections  = 5
	correctionWindow = 10 * time.Minute
)

// Plan returns what to do about a Resource on a cluster. It is pure.
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
		return waiting(kontrol.ReasonNoCluster, "there is no cluster of that name: create it, or change the Resource")
	}
	if o.Other != "" {
		return Step{Status: kontrol.ApplyConflict, Reason: kontrol.ReasonSameObject,
			Error: fmt.Sprintf("Resource %s is about the same object, and had it first: delete one of them", o.Other)}
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
		return waiting(o.WaitsReason, o.Waits)
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
			pause := min(time.Second<<min(o.Tries.Corrections-freeCorrections, 10), 5*time.Minute)
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

// group returns the API group of an object.
func group(t kontrol.Target) string {
	gv, _ := schema.ParseGroupVersion(t.APIVersion) // it was validated
	return gv.Group
}
