package rest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestConflicts: a change is made again after a pause, for as long as the client waits.
func TestConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conflict, other := apierrors.NewConflict(schema.GroupResource{}, "x", nil), errors.New("other")
		tries := 0
		began := time.Now()
		require.Equal(t, other, again(t.Context(), func() error {
			if tries++; tries < 10 {
				return conflict
			}
			return other
		}))
		require.Equal(t, 10, tries)
		require.Greater(t, time.Since(began), pauseMost)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tries = 0
		require.ErrorIs(t, again(ctx, func() error { tries++; return conflict }), context.DeadlineExceeded)
		require.Less(t, tries, 300)
	})
}
