// Package commandtest helps tests of commands.
package commandtest

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Output returns what f prints. The test fails if f returns an error.
func Output(t *testing.T, f func(out io.Writer) error) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, f(&out))
	return out.String()
}
