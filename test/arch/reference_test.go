package arch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/hack/reference/scan"
)

// TestReferencePagesAreCurrent: the pages of metrics and events list what the source has.
func TestReferencePagesAreCurrent(t *testing.T) {
	metrics, events, err := scan.Source("../..", "pkg", "cmd")
	require.NoError(t, err)
	require.Greater(t, len(metrics), 50)
	require.Greater(t, len(events), 80)
	for name, want := range scan.Pages(metrics, events) {
		have, err := os.ReadFile(filepath.Join("../../pkg/cli/manual/pages/reference", name))
		require.NoError(t, err)
		require.Equal(t, want, string(have), "%s is out of date: run `make generate`", name)
	}
}
