package frame

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 50, 200)
		in := Head{
			Kind: Kind(rapid.Byte().Draw(t, "kind")), ID: text.Draw(t, "id"), ContentType: text.Draw(t, "type"),
			Trace:      text.Draw(t, "trace"),
			DeadLetter: text.Draw(t, "dead"), ErrorType: text.Draw(t, "error"), Attempt: rapid.Int32Min(0).Draw(t, "attempt"),
			Deadline: rapid.Int64Min(0).Draw(t, "deadline"), DedupID: text.Draw(t, "dedup"),
			OrderKey: text.Draw(t, "key"),
		}
		payload := rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		require.NoError(t, Write(w, &in, payload))
		require.NoError(t, w.Flush())
		r := bufio.NewReader(&b)
		out, size, err := Read(r)
		require.NoError(t, err)
		require.Equal(t, in, out)
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Len(t, rest, size)
		require.True(t, bytes.Equal(payload, rest))
	})
}

func TestLimits(t *testing.T) {
	w := bufio.NewWriter(io.Discard)
	require.Error(t, Write(w, &Head{DeadLetter: strings.Repeat("x", MaxHead)}, nil))
	require.Error(t, Write(w, &Head{}, make([]byte, MaxPayload+1)))
	require.NoError(t, Write(w, &Head{Kind: Message}, make([]byte, MaxMessage)))
	require.Error(t, Write(w, &Head{Kind: Message}, make([]byte, MaxMessage+1)))
	for _, text := range []string{
		"\xff\xff\xff\xff\x00\x00\x00\x00", "\x00\x00\x00\x01\xff\xff\xff\xffm", "\x00\x00\x00\x00\x00\x00\x00\x00",
		"\x00\x00\x00\x02\x00\x00\x00\x00m\x05", "\x00\x00\x00\x01\x00\x10\x00\x01r",
		"\x00\x00\x00\x09\x00\x00\x00\x00m\x00\x00\x00\x00\x00\x00\x00\x05",
	} {
		_, _, err := Read(bufio.NewReader(strings.NewReader(text)))
		require.ErrorIs(t, err, ErrMalformed, "%q", text)
	}
	_, _, err := Read(bufio.NewReader(strings.NewReader("\x00\x00\x00\x05\x00\x00\x00\x00m")))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x08\x00\x00\x00\x00m\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _, _ = Read(bufio.NewReader(bytes.NewReader(b))) })
}
