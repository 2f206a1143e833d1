package shim

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func FuzzReadFrame(f *testing.F) {
	var good bytes.Buffer
	require.NoError(f, WriteHead(&good, Request{Op: Start, ID: "a"}))
	f.Add(good.Bytes())
	f.Add([]byte{FrameIn, 0, 0, 0, 0})
	f.Add([]byte{FrameOut, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, body, err := ReadFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		var again bytes.Buffer
		require.NoError(t, WriteFrame(&again, kind, body))
		require.Equal(t, data[:again.Len()], again.Bytes())
	})
}
