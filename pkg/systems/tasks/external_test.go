package tasks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// TestExternalWorkersAreExternalNodes checks that the core and this system use the same label.
func TestExternalWorkersAreExternalNodes(t *testing.T) {
	require.Equal(t, tasks.External, nodestate.LabelExternal)
}
