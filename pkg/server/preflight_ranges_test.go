package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/agent"
)

func TestOutsideRanges(t *testing.T) {
	const pods, services = "10.42.0.0/16", "10.43.0.0/16"
	require.NoError(t, outsideRanges("192.0.2.1", pods, services))
	require.ErrorContains(t, outsideRanges("10.42.3.4", pods, services), "10.42.3.4 is in --cluster-cidr 10.42.0.0/16")
	require.ErrorContains(t, outsideRanges("10.43.0.1", pods, services), "is in --service-cidr 10.43.0.0/16")
}

func TestSameRange(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, sameRange(dir, "10.150.0.0/16"), "no node has run here")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "agent"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "agent", agent.RangeFile), []byte("10.42.0.0/24\n"), 0o600))
	require.NoError(t, sameRange(dir, "10.42.0.0/16"))
	require.ErrorContains(t, sameRange(dir, "10.150.0.0/16"), "10.150.0.0/16 does not contain 10.42.0.0/24")
}
