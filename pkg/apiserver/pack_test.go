package apiserver

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPackerWritesOneStream(t *testing.T) {
	for _, parts := range [][]int{{}, {0}, {1}, {100_000, 0, 1, 3000, 70_000}} {
		var out, want bytes.Buffer
		p := &packer{w: &out}
		random := rand.New(rand.NewPCG(1, 2))
		for _, size := range parts {
			b := make([]byte, size)
			for i := range b {
				b[i] = "abc"[random.IntN(3)]
			}
			n, err := p.Write(b)
			require.NoError(t, err)
			require.Equal(t, size, n)
			want.Write(b)
			require.NoError(t, p.Flush())
			require.Nil(t, p.z)
		}
		require.NoError(t, p.Close())
		z, err := gzip.NewReader(&out)
		require.NoError(t, err)
		z.Multistream(false)
		got, err := io.ReadAll(z)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want.Bytes(), got))
		require.Zero(t, out.Len())
	}
}
