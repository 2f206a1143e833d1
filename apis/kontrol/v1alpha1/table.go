package v1alpha1

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

func name() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{
		Name:        "Name",
		Type:        "string",
		Format:      "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"],
	}
}

func column(name, about string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: about}
}

func wide(name, about string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Priority: 1, Description: about}
}

// ClusterColumns returns the columns of kubectl get clusters.
func ClusterColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		name(), column("Ready", "Whether it answers, or why not"), column("Version", "The version of its API server"),
		column("Last Seen", "Time since it answered last"), column("Age", "Time since its creation"),
		wide("Server", "The address of its API server"), wide("Message", "What is wrong, and what to do"),
	}
}

// ClusterCells returns a cluster's values for ClusterColumns.
func ClusterCells(c *Cluster, now time.Time) []any {
	ready, message, seen := "Unknown", "", "never"
	if r := meta.FindStatusCondition(c.Status.Conditions, ConditionReady); r != nil {
		ready, message = "True", r.Message
		if r.Status != metav1.ConditionTrue {
			ready = r.Reason
		}
	}
	if c.Status.LastSeen != nil {
		seen = common.Age(c.Status.LastSeen.Time, now)
	}
	return []any{
		c.Name, ready, c.Status.Version, seen, common.Age(c.CreationTimestamp.Time, now), c.Status.Server, message,
	}
}

// Columns returns the columns of kubectl get resources.
func Columns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		name(), column("Object", "The kind and name of the object"),
		column("Clusters", "The clusters in sync, of those that should have it"),
		column("State", "The worst state on any cluster"), column("Revision", "The revision of its content"),
		column("Mode", "What is done about drift"),
		column("Age", "Time since its creation"), wide("ID", "Its number"), wide("Generation", "How often it was changed"),
		wide("Message", "What is wrong, and what to do"),
	}
}

// Cells returns a Resource's values for Columns.
func Cells(r *Resource, now time.Time) []any {
	t, s := TargetOf(r), &r.Status
	state := string(s.State)
	switch {
	case r.DeletionTimestamp != nil:
		state = "Terminating"
	case s.ObservedGeneration != r.Generation:
		state = string(StateOutOfSync)
	}
	return []any{
		r.Name, t.String(), fmt.Sprintf("%d/%d", s.Clusters.Synced, s.Clusters.Total), state, fmt.Sprint(revisionOf(r)),
		string(r.Spec.Mode),
		common.Age(r.CreationTimestamp.Time, now), fmt.Sprint(s.ID), fmt.Sprint(r.Generation), s.Message,
	}
}

// String returns kind/name or kind/namespace/name.
func (t Target) String() string {
	if t.Namespace != "" {
		return t.Kind + "/" + t.Namespace + "/" + t.Name
	}
	return t.Kind + "/" + t.Name
}

// AppliedColumns returns the columns of kubectl get appliedstates.
func AppliedColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		name(), column("Object", "The kind and name of the object"), column("Cluster", "The cluster"),
		column("Status", "The result of the last attempt"),
		column("Generation", "The Resource's generation that was applied"),
		column("Revision", "The Resource's revision that was applied"),
		column("Applied", "Time since it was applied last"), wide("Corrections", "How often drift was corrected"),
		wide("Error", "What is wrong, and what to do"),
	}
}

// AppliedCells returns an applied state's values for AppliedColumns.
func AppliedCells(a *AppliedState, now time.Time) []any {
	s, at := &a.State, "never"
	if s.AppliedAt != nil {
		at = common.Age(s.AppliedAt.Time, now)
	}
	status := string(s.Status)
	if s.Reason != "" {
		status += ": " + s.Reason
	}
	return []any{
		a.Name, s.Target.String(), s.Cluster, status, fmt.Sprint(s.Generation), fmt.Sprint(s.Revision), at,
		fmt.Sprint(s.Corrections), s.Error,
	}
}

// CurrentColumns returns the columns of kubectl get currentstates.
func CurrentColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		name(), column("Object", "The kind and name of the object"), column("Cluster", "The cluster"),
		column("Health", "Whether it works"),
		column("Generation", "The Resource's generation that is there"),
		column("Revision", "The Resource's revision that is there"),
		column("Drift", "How many fields others changed"), column("Seen", "Time since anything changed"),
		wide("Version", "The object's resourceVersion on the cluster"),
		wide("First Drift", "The field that others changed, and who"),
		wide("Message", "Why it does not work, or cannot be read"),
	}
}

// CurrentCells returns a current state's values for CurrentColumns.
func CurrentCells(c *CurrentState, now time.Time) []any {
	s, seen, first := &c.State, "never", ""
	if s.Time != nil {
		seen = common.Age(s.Time.Time, now)
	}
	if len(s.Drift) > 0 {
		d := s.Drift[0]
		first = d.Path + " " + string(d.Type)
		if d.Manager != "" {
			first += " by " + d.Manager
		}
	}
	message := s.HealthMessage
	if s.Error != "" {
		message = s.Error
	}
	health := string(s.Health)
	if s.Reason != "" {
		health = s.Reason
	}
	return []any{
		c.Name, s.Target.String(), s.Cluster, health, fmt.Sprint(s.Generation), fmt.Sprint(s.Revision),
		fmt.Sprint(s.DriftCount), seen,
		s.ResourceVersion, first, message,
	}
}
