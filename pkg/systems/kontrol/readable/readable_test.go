package readable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyTheNamespacesAreRead(t *testing.T) {
	require.NoError(t, Namespaces(nil).Check("Secret", "a", "s"))
	require.NoError(t, Namespaces{"a", "b"}.Check("Secret", "b", "s"))
	require.EqualError(t, Namespaces{"a", "b"}.Check("Secret", "c", "s"),
		"Secret s is in namespace c, but this operator reads only from a, b: move it there, or add the namespace to "+
			"--source-namespaces")
}
