package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
)

// tellCurrent records events of a Resource when its object on a cluster begins or ends to be drifted or degraded. was
// is nil for the first record.
func tellCurrent(to *events.Recorder, r *kontrol.Resource, was, is *kontrol.Current) {
	if was == nil {
		was = &kontrol.Current{}
	}
	switch drifted := is.DriftCount > 0; {
	case drifted && was.DriftCount == 0:
		to.Event(r, corev1.EventTypeWarning, "Drifted", "On cluster %s: %s", is.Cluster, state.Describe(is))
	case !drifted && was.DriftCount > 0 && is.Reason == "":
		to.Event(r, corev1.EventTypeNormal, "DriftEnded", "On cluster %s the object is as it was applied", is.Cluster)
	}
	switch degraded := is.Health == kontrol.HealthDegraded; {
	case degraded && was.Health != kontrol.HealthDegraded:
		to.Event(r, corev1.EventTypeWarning, "Degraded", "On cluster %s: %s", is.Cluster, is.HealthMessage)
	case is.Health == kontrol.HealthHealthy && was.Health == kontrol.HealthDegraded:
		to.Event(r, corev1.EventTypeNormal, "Recovered", "On cluster %s the object is healthy", is.Cluster)
	}
}

// tellApplied records events of a Resource when a cluster refuses its object because of a conflict, and when that ends.
func tellApplied(to *events.Recorder, r *kontrol.Resource, was, is *kontrol.Applied) {
	before := was != nil && was.Status == kontrol.ApplyConflict
	switch {
	case is.Status == kontrol.ApplyConflict && !before:
		to.Event(r, corev1.EventTypeWarning, "Conflict", "On cluster %s: %s", is.Cluster, is.Error)
	case is.Status == kontrol.ApplyApplied && before:
		to.Event(r, corev1.EventTypeNormal, "ConflictEnded", "On cluster %s the object was applied", is.Cluster)
	}
}

// tellCluster records events of a Cluster that stops or begins to respond. Its Resources get none: there may be
// thousands.
func tellCluster(to *events.Recorder, c *kontrol.Cluster, is *kontrol.ClusterStatus) {
	was := meta.FindStatusCondition(c.Status.Conditions, kontrol.ConditionReady)
	now := meta.FindStatusCondition(is.Conditions, kontrol.ConditionReady)
	if now == nil || now.Reason == kontrol.ReasonConnecting || was != nil && was.Status == now.Status &&
		(was.Reason == now.Reason) {
		return
	}
	if ready := now.Status == "True"; !ready {
		to.Event(c, corev1.EventTypeWarning, "ClusterNotReady", "%s: %s", now.Reason, now.Message)
	} else {
		to.Event(c, corev1.EventTypeNormal, "ClusterReady", "%s", now.Message)
	}
}
