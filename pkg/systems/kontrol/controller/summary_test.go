package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
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

// TestHealthSaysWhy checks that the condition of a Resource whose object was removed is not without a reason.
func TestHealthSaysWhy(t *testing.T) {
	r := &kontrol.Resource{}
	said := func(c kontrol.Current) string {
		var s kontrol.ResourceStatus
		Summarize(&s, r, []state.Input{{Resource: r, Current: &c}})
		return meta.FindStatusCondition(s.Conditions, kontrol.ConditionHealthy).Message
	}
	on := kontrol.Subject{Cluster: "c7"}
	require.Equal(t, "on c7: the object does not exist", said(kontrol.Current{Subject: on, Health: kontrol.HealthMissing}))
	require.Equal(t, "on c7: 1 of 2 pods are ready", said(kontrol.Current{
		Subject: on, Health: kontrol.HealthProgressing, HealthMessage: "1 of 2 pods are ready",
	}))
	require.Empty(t, said(kontrol.Current{Subject: on, Health: kontrol.HealthHealthy}))
}
