package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// components returns the ComponentStatuses that q selects. Each read checks the components of the control plane.
func (s *Server) components(ctx context.Context, r *kind.Resource, q cache.Query) (found []*cache.Entry) {
	for i := range s.cfg.Components {
		c := &s.cfg.Components[i]
		if q.Labels.Matches(labels.Set{}) && q.Fields.Matches(fields.Set{"metadata.name": c.Name}) {
			found = append(found, s.component(ctx, r, c))
		}
	}
	return found
}

func (s *Server) component(ctx context.Context, r *kind.Resource, c *Check) *cache.Entry {
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := s.health.run(ctx, "componentstatus", c); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	status := &corev1.ComponentStatus{
		TypeMeta:   metav1.TypeMeta{Kind: r.Kind, APIVersion: r.GroupVersion().String()},
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Conditions: []corev1.ComponentCondition{condition},
	}
	return cache.NewEntry(r, "/registry/"+r.Keys+"/"+c.Name, status, 0)
}
