package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPausesDouble(t *testing.T) {
	b := Backoff{First: time.Second, Most: 5 * time.Second}
	var pauses []time.Duration
	for range 5 {
		pauses = append(pauses, b.Next())
	}
	require.Equal(t, []time.Duration{1e9, 2e9, 4e9, 5e9, 5e9}, pauses)
	for i, pause := range pauses {
		require.Equal(t, pause, Pause(time.Second, 5*time.Second, i+1))
	}
	require.Equal(t, time.Second, Pause(time.Second, 5*time.Second, 0))
	require.Equal(t, time.Hour, Pause(time.Second, time.Hour, 1<<30))
	b.Reset()
	require.Equal(t, time.Second, b.Next())
	b.Next()
	b.ResetAfter(time.Now().Add(-time.Second))
	require.Equal(t, 4*time.Second, b.Next(), "it ran for too short a time")
	b.ResetAfter(time.Now().Add(-6 * time.Second))
	require.Equal(t, time.Second, b.Next())
	b = Backoff{First: time.Second, Most: time.Second, Jitter: true}
	for range 100 {
		d := b.Next()
		require.True(t, d >= time.Second/2 && d < 3*time.Second/2, d)
	}
}

func TestWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		b, began := Backoff{First: time.Second, Most: time.Minute}, time.Now()
		require.True(t, b.Wait(ctx))
		require.False(t, b.Wait(ctx))
		require.Equal(t, 2500*time.Millisecond, time.Since(began))
	})
}
