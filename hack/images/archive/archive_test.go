package archive

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A tar ends with two blocks of zeros; without them tar prints "Unexpected EOF".
func TestTarsHaveAnEndMarker(t *testing.T) {
	end := make([]byte, 1024)
	data, err := layer([]File{{Name: "bin/a", Mode: 0o755, Data: []byte("x")}})
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(data, end))
	data, err = pack(t.TempDir())
	require.NoError(t, err)
	require.Equal(t, end, data)
}
