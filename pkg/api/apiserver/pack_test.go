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
	for _, parts := range [][]int{{}, {0}, {1}, {100_000, 0, 1, 3000, 7000, 170_000}} {
		var out, want bytes.Buffer
		p := &packer{w: &out}
		random := rand.New(rand.NewPCG(1, 2))
		for i, size := range parts {
			if i%2 == 1 { // the others hold all compressors
				compressing.Add(mostCompressors)
			}
			b := make([]byte, size)
			for i := range b {
				b[i] = "abc"[random.IntN(3)]
			}
			n, err := p.Write(b)
			require.NoError(t, err)
			require.Equal(t, size, n)
			want.Write(b)
			require.Equal(t, i%2 == 0, p.z != nil)
			require.NoError(t, p.Flush())
			require.Nil(t, p.z)
			if i%2 == 1 {
				compressing.Add(-mostCompressors)
			}
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

// A client that stops reading does not keep a compressor that others need, and a lost connection does not leak one.
func TestCompressorsAreBounded(t *testing.T) {
	before := compressing.Load()
	var all []*packer
	for range 3 * mostCompressors {
		p := &packer{w: lost{}}
		_, err := p.Write(make([]byte, 1000))
		if p.z == nil {
			require.ErrorIs(t, err, io.ErrClosedPipe)
		}
		all = append(all, p)
	}
	require.Equal(t, int32(mostCompressors), compressing.Load())
	for _, p := range all {
		require.Error(t, p.Close())
		p.release()
	}
	require.Equal(t, before, compressing.Load())
}

// lost is a connection that fails after the gzip header.
type lost struct{}

func (lost) Write(b []byte) (int, error) {
	if string(b) == gzipHead {
		return len(b), nil
	}
	return 0, io.ErrClosedPipe
}
