package controller

import (
	"context"
	"fmt"
	"slices"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// accept does what an API server that has Kontrol's kinds by definitions cannot do. It returns the Resource with the
// status that accepts it, which is to be written, or why it is refused. Nil means that another client changed it
// at the same time; its event leads to another reconciliation.
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

// written reports whether the API server has what acceptance adds to a Resource beside its status.
func written(next, r *kontrol.Resource) bool {
	return r.Spec.Revision != nil && *next.Spec.Revision == *r.Spec.Revision && next.Spec.Mode == r.Spec.Mode &&
		next.Spec.DeletionPolicy == r.Spec.DeletionPolicy &&
		slices.Equal(next.Finalizers, r.Finalizers)
}
