// Package state compares what is desired, what was applied and what is there.
//
// It contains only pure functions. Its invariant: a state is never better than what is known: what was not seen is not
// in sync.
package state

import (
	"bytes"
	"fmt"
	"strconv"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
)

// Input is what is known of a Resource on one cluster.
type Input struct {
	Resource *kontrol.Resource
	// Cluster is nil if there is none of that name.
	Cluster *kontrol.Cluster
	// Applied and Current are nil if there are none.
	Applied *kontrol.Applied
	Current *kontrol.Current
}

// Of returns the state of a Resource on one cluster, and a message that says what, where and what to do; empty if it is
// synced.
func Of(in Input) (kontrol.State, string) {
	r, a, c := in.Resource, in.Applied, in.Current
	if ready, why := Reachable(in.Cluster); !ready {
		return kontrol.StateUnreachable, why
	}
	at := "on " + in.Cluster.Name + ": "
	if a != nil && a.ResourceUID != string(r.UID) {
		a = nil // of an earlier Resource of the name
	}
	if c != nil && c.ResourceUID != string(r.UID) {
		c = nil
	}
	switch {
	case a != nil && a.Status == kontrol.ApplyConflict && a.AttemptedGeneration == r.Generation:
		return kontrol.StateConflict, at + a.Error
	case a == nil || a.Generation != r.Generation || a.Variant != placement.Variant(r, in.Cluster):
		if a != nil && a.Error != "" {
			return kontrol.StateOutOfSync, at + a.Error
		}
		if a != nil && a.Generation == r.Generation {
			return kontrol.StateOutOfSync, at + "the overrides for the cluster have changed and are not applied yet"
		}
		return kontrol.StateOutOfSync, fmt.Sprintf("%sgeneration %d is not applied yet", at, r.Generation)
	case c == nil:
		return kontrol.StatePendingApplied, at + "what is there was not seen yet"
	case c.Reason != "":
		return kontrol.StatePendingApplied, at + c.Error
	case c.DriftCount > 0:
		return kontrol.StateDrifted, at + Describe(c)
	case !c.Present:
		return kontrol.StatePendingApplied, at + "the object was applied, but not seen yet"
	case c.Generation != a.Generation || c.Revision != a.Revision:
		return kontrol.StatePendingApplied, fmt.Sprintf("%sgeneration %d was applied, %d was seen last", at, a.Generation,
			c.Generation)
	case older(c.ResourceVersion, a.ResourceVersion) && !bytes.Equal(c.Object.Raw, a.Object.Raw):
		// An apply that was killed before it was recorded, and then drift: the apply since then has reverted it.
		return kontrol.StatePendingApplied, at + "the object was applied again, but not seen since"
	case a.Status == kontrol.ApplyFailed && a.AttemptedGeneration == r.Generation:
		return kontrol.StateOutOfSync, at + a.Error
	case c.Health == kontrol.HealthDegraded:
		return kontrol.StateDegraded, at + c.HealthMessage
	}
	return kontrol.StateSynced, ""
}

// older reports whether one resourceVersion precedes another (KEP-5504). It returns false for versions that are not
// numbers, and for records of earlier versions of Kontrol, which have none.
func older(a, b string) bool {
	x, err := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err == nil && err2 == nil && x < y
}

// describe says what the first drift is, and who made it.
// Describe says what drifted: the first field, who changed it, and how many more.
func Describe(c *kontrol.Current) string {
	if len(c.Drift) == 0 {
		return fmt.Sprintf("%d fields were changed", c.DriftCount)
	}
	d := c.Drift[0]
	text := d.Path + " was " +
		map[kontrol.DriftType]string{
			kontrol.DriftChanged: "changed",
			kontrol.DriftRemoved: "removed",
			kontrol.DriftAdded:   "added",
		}[d.Type]
	if d.Path == "" {
		text = "the object was removed"
	}
	if d.Manager != "" {
		text += " by " + d.Manager
	}
	if c.DriftCount > 1 {
		text += fmt.Sprintf(", and %d more", c.DriftCount-1)
	}
	return text
}

// Reachable reports whether a cluster answers; why says what is wrong.
func Reachable(c *kontrol.Cluster) (ok bool, why string) {
	if c == nil {
		return false, "there is no cluster of that name: create it, or change the Resource"
	}
	for i := range c.Status.Conditions {
		if r := &c.Status.Conditions[i]; r.Type == kontrol.ConditionReady {
			return r.Status == "True", "cluster " + c.Name + ": " + r.Message
		}
	}
	return false, "cluster " + c.Name + " is not connected yet"
}

// severity orders states: the highest of all clusters is the Resource's.
var severity = map[kontrol.State]int{
	kontrol.StateSynced: 0, kontrol.StatePendingApplied: 1, kontrol.StateOutOfSync: 2, kontrol.StateDegraded: 3,
	kontrol.StateDrifted:     4,
	kontrol.StateUnreachable: 5, kontrol.StateConflict: 6,
}

// Worse reports whether a state is worse than another.
func Worse(a, b kontrol.State) bool { return severity[a] > severity[b] }

// Sum counts states, and finds the worst one with its message. Without any the Resource is out of sync.
type Sum struct {
	Counts  kontrol.ClusterCounts
	State   kontrol.State
	Message string
}

// Add adds the state of one cluster.
func (s *Sum) Add(st kontrol.State, message string) {
	c := &s.Counts
	c.Total++
	*map[kontrol.State]*int32{
		kontrol.StateSynced: &c.Synced, kontrol.StateOutOfSync: &c.OutOfSync, kontrol.StatePendingApplied: &c.PendingApplied,
		kontrol.StateDrifted:  &c.Drifted,
		kontrol.StateConflict: &c.Conflict, kontrol.StateUnreachable: &c.Unreachable, kontrol.StateDegraded: &c.Degraded,
	}[st]++
	if s.State == "" || Worse(st, s.State) {
		s.State, s.Message = st, message
	}
}
