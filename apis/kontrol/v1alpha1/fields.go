package v1alpha1

import (
	"strconv"

	"k8s.io/apimachinery/pkg/fields"
)

// Fields for field selectors besides the name: the id of Resources, and the Resource and cluster of states.
const (
	FieldID       = "status.id"
	FieldResource = "state.resource"
	FieldCluster  = "state.cluster"
)

// ResourceFields returns the selectable fields of a Resource.
func ResourceFields(r *Resource) fields.Set {
	return fields.Set{FieldID: strconv.FormatInt(r.Status.ID, 10)}
}

// AppliedFields returns the selectable fields of an applied state.
func AppliedFields(a *AppliedState) fields.Set { return subjectFields(&a.State.Subject) }

// CurrentFields returns the selectable fields of a current state.
func CurrentFields(c *CurrentState) fields.Set { return subjectFields(&c.State.Subject) }

// SubjectOf returns the Resource and cluster of a state, or empty strings for any other object.
func SubjectOf(o any) (resource, cluster string) {
	switch s := o.(type) {
	case *AppliedState:
		return s.State.Resource, s.State.Cluster
	case *CurrentState:
		return s.State.Resource, s.State.Cluster
	}
	return "", ""
}

func subjectFields(s *Subject) fields.Set {
	return fields.Set{FieldResource: s.Resource, FieldCluster: s.Cluster}
}
