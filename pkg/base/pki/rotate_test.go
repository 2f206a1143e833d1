package pki

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRotateServiceAccount(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	s, err := Load(dir)
	require.NoError(t, err)
	first := s.ServiceAccount
	require.NoError(t, s.RotateServiceAccount(dir, time.Hour, now))
	require.False(t, first.Equal(s.ServiceAccount))
	again, err := Load(dir)
	require.NoError(t, err)
	require.True(t, s.ServiceAccount.Equal(again.ServiceAccount))
	require.Len(t, again.Retired, 1)
	require.True(t, first.PublicKey.Equal(again.Retired[0].Public))
	require.WithinDuration(t, now.Add(time.Hour), again.Retired[0].Until, time.Second)

	// Expired keys are dropped by the next rotation, and the list is limited.
	require.NoError(t, again.RotateServiceAccount(dir, time.Hour, now.Add(2*time.Hour)))
	require.Len(t, again.Retired, 1)
	require.True(t, s.ServiceAccount.PublicKey.Equal(again.Retired[0].Public))
	for range mostRetired - 1 {
		require.NoError(t, again.RotateServiceAccount(dir, time.Hour, now.Add(2*time.Hour)))
	}
	require.ErrorContains(t, again.RotateServiceAccount(dir, time.Hour, now.Add(2*time.Hour)), "overlap of 0")
	require.NoError(t, again.RotateServiceAccount(dir, 0, now.Add(2*time.Hour)))
	require.Empty(t, again.Retired, "no overlap believes none of the earlier keys")
	require.Error(t, again.RotateServiceAccount(dir, -time.Hour, now))
	last, err := Load(dir)
	require.NoError(t, err)
	require.Empty(t, last.Retired)
	require.True(t, again.ServiceAccount.Equal(last.ServiceAccount))

	require.NoError(t, os.WriteFile(filepath.Join(dir, retiredAccountFile), s.Server.Bundle(), 0o600))
	_, err = Load(dir)
	require.ErrorContains(t, err, retiredAccountFile)
}

func TestInspect(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	s, err := Load(dir)
	require.NoError(t, err)
	require.NoError(t, s.RotateServiceAccount(dir, time.Hour, now))
	all, err := Inspect(dir)
	require.NoError(t, err)
	names := map[string]Item{}
	for _, i := range all {
		names[i.Name] = i
	}
	require.Len(t, names, 5)
	require.Equal(t, authorityUntil, names["authority of the API"].Until)
	require.WithinDuration(t, now, names["authority of the API"].Since, time.Minute)
	require.Zero(t, names["service account key"].Until)
	require.WithinDuration(t, now.Add(time.Hour), names["service account key, retired"].Until, time.Minute)
}
