package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
)

// TestPassing checks that a summary waits briefly for the watch, even if another server's clock is ahead.
func TestPassing(t *testing.T) {
	now := time.Unix(1000, 0)
	applied := func(at time.Time) []state.Input {
		when := metav1.NewMicroTime(at)
		return []state.Input{{Applied: &kontrol.Applied{AppliedAt: &when}}}
	}
	require.Equal(t, passes-100*time.Millisecond,
		passing(applied(now.Add(-100*time.Millisecond)), kontrol.StatePendingApplied, now))
	require.Zero(t, passing(applied(now.Add(10*time.Minute)), kontrol.StatePendingApplied, now))
	require.LessOrEqual(t, passing(applied(now.Add(-time.Hour)), kontrol.StatePendingApplied, now), time.Duration(0))
	require.Zero(t, passing(applied(now), kontrol.StateSynced, now))
}
