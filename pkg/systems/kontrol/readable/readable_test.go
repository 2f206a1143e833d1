package readable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyTheNamespacesAreRead(t *testing.T) {
	require.NoError(t, Namespaces(nil).Check("Secret", "a", "s"))
	require.NoError(t, Namespaces{"a", "b"}.Check("Secret", "b", "s"))
	require.EqualError(t, Namespaces{"a", "b"}.Check("Secret", "c", "s"),
		"Secret s in namespace c is not read: this operator reads those of a, b alone. Move it there, or add the namespace "+
			"to --source-namespaces")
}
