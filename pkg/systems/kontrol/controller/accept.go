package controller

import (
	"context"
	"fmt"
	"slices"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// accept defaults and validates a Resource on an API server that has Kontrol's kinds as CustomResourceDefinitions.
// It returns the Resource with an accepted status that the caller must write, or the reason for a refusal. A nil
// Resource means that another client changed it meanwhile; that event triggers another reconciliation.
func (s *summary) accept(ctx context.Context, r *kontrol.Resource) (out *kontrol.Resource, refused string, err error) {
	for range 2 {
		next, errs := kontrol.Accept(r)
		if len(errs) > 0 {
			return r, fmt.Sprintf("generation %d is not valid, and is not applied: %v", r.Generation, errs.ToAggregate()), nil
		}
		if written(next, r) {
			return next, "", nil
		}
		if err := s.Client.Update(ctx, next); err != nil {
			return nil, "", err
		}
		r = next
	}
	return nil, "", nil
}

// written reports whether the API server already has the fields that acceptance sets outside the status.
func written(next, r *kontrol.Resource) bool {
	return r.Spec.Revision != nil && *next.Spec.Revision == *r.Spec.Revision && next.Spec.Mode == r.Spec.Mode &&
		next.Spec.DeletionPolicy == r.Spec.DeletionPolicy &&
		slices.Equal(next.Finalizers, r.Finalizers)
}
