// Package state computes the state of a Resource from its desired, applied and current state.
//
// It contains only pure functions. Its invariant: a state is never better than the evidence. An object that was not
// seen since the last apply is not Synced.
package state

import (
	"bytes"
	"fmt"
	"strconv"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
)

// Input describes a Resource on one cluster.
type Input struct {
	Resource *kontrol.Resource
	// Cluster is nil if it does not exist.
	Cluster *kontrol.Cluster
	// Applied and Current are nil if they are not recorded yet.
	Applied *kontrol.Applied
	Current *kontrol.Current
}

// Of returns the state of a Resource on one cluster. The message names the cluster, the problem and, where there is
// one, the remedy. It is empty if the state is Synced.
func Of(in Input) (kontrol.State, string) {
	r, a, c := in.Resource, in.Applied, in.Current
	if ready, why := Reachable(in.Cluster); !ready {
		return kontrol.StateUnreachable, why
	}
	at := "on " + in.Cluster.Name + ": "
	if a != nil && a.ResourceUID != string(r.UID) {
		a = nil // recorded for a deleted Resource of the same name
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
		return kontrol.StatePendingApplied, at + "the object on the cluster was not seen yet"
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
		// Kontrol was killed between an apply and its record, the object drifted, and the next apply reverted that.
		return kontrol.StatePendingApplied, at + "the object was applied again, but not seen since"
	case a.Status == kontrol.ApplyFailed && a.AttemptedGeneration == r.Generation:
		return kontrol.StateOutOfSync, at + a.Error
	case c.Health == kontrol.HealthDegraded:
		return kontrol.StateDegraded, at + c.HealthMessage
	}
	return kontrol.StateSynced, ""
}

// older reports whether resourceVersion a precedes b (KEP-5504). It returns false if either is not a number, or is
// missing because an earlier release of Kontrol wrote the record.
func older(a, b string) bool {
	x, err := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err == nil && err2 == nil && x < y
}

// Describe says what drifted: the first field, who changed it, and how many more.
func Describe(c *kontrol.Current) string {
	if len(c.Drift) == 0 {
		return count.Of(c.DriftCount, "field") + " changed"
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

// Reachable reports whether a cluster is Ready; why gives the reason if it is not.
func Reachable(c *kontrol.Cluster) (ok bool, why string) {
	if c == nil {
		return false, "the cluster does not exist: create it, or change the Resource"
	}
	for i := range c.Status.Conditions {
		if r := &c.Status.Conditions[i]; r.Type == kontrol.ConditionReady {
			return r.Status == "True", "cluster " + c.Name + ": " + r.Message
		}
	}
	return false, "cluster " + c.Name + " is not connected yet"
}

// severity orders states. A Resource has the state of its cluster with the highest severity.
var severity = map[kontrol.State]int{
	kontrol.StateSynced: 0, kontrol.StatePendingApplied: 1, kontrol.StateOutOfSync: 2, kontrol.StateDegraded: 3,
	kontrol.StateDrifted:     4,
	kontrol.StateUnreachable: 5, kontrol.StateConflict: 6,
}

// Worse reports whether a state is worse than another.
func Worse(a, b kontrol.State) bool { return severity[a] > severity[b] }

// Sum counts the states of clusters and keeps the worst one with its message. State is empty without clusters.
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
