package socket

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	for bytes, want := range map[int64]string{
		0:         "0 B",
		1023:      "1023 B",
		1024:      "1.0 KiB",
		1536:      "1.5 KiB",
		1 << 30:   "1.0 GiB",
		1<<63 - 1: "8.0 EiB",
	} {
		require.Equal(t, want, Bytes(bytes))
	}
}
